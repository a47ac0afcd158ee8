"""The rule coach's sets of rules: which function judges which agent, by the set that a team names.

Change what a set scores, and its `version` goes up: the version, not the source, is the identity
that stored scores and corrections keep (`tests/unit/coach/test_rules_golden.py` holds it to that).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from mappa_core.coach.rules.answers import judge_answer, judge_plan, judge_program, judge_solver
from mappa_core.coach.rules.judgement import Judgement
from mappa_core.coach.rules.pipeline import judge_pipeline
from mappa_core.coach.rules.stories import read_story
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.core.records.scores import CoachCase
from mappa_core.core.text import common_name

Judge = Callable[[CoachCase], Judgement | None]
"""Judges one action, or None where the rules do not speak of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    """How the agents of a team are judged without a model."""

    version: int
    judges: Mapping[str, Judge]
    """By agent."""
    by_words: bool = True
    """Whether it judges by what a problem's words imply, and so has to be able to read them."""

    def judge_of(self, agent: str) -> Judge | None:
        """The agent's rules, those of the first of numbered peers where it has none of its own."""
        return self.judges.get(agent) or self.judges.get(f"{common_name(agent)}_1")


RULE_SETS: Mapping[str, RuleSet] = MappingProxyType(
    {
        "mathchat": RuleSet(
            version=2,
            judges={
                "problem_solver": judge_plan,
                "code_executor": judge_program,
                "verifier": judge_answer,
            },
        ),
        "single": RuleSet(version=2, judges={"solver": judge_solver}),
        "debate": RuleSet(
            version=2, judges=dict.fromkeys(("debater_1", "debater_2", "debater_3"), judge_answer)
        ),
        "mixture": RuleSet(
            version=2,
            judges={
                "proposer_1": judge_plan,
                "proposer_2": judge_answer,
                "aggregator": judge_answer,
            },
        ),
        "dsbench": RuleSet(
            version=2,
            judges=dict.fromkeys(("data_engineer", "modeler", "analyst"), judge_pipeline),
            by_words=False,  # by the file trail
        ),
    }
)
"""Every set by name."""

_NAME_ANOTHER = "name a coach that can, e.g. coach.backend=gemini coach.model=gemini-2.5-flash"


def load_rules(name: str | None) -> RuleSet:
    """Find a set of rules; None is the one that judges no agent.

    Raises:
        ConfigError: There is no such set.
    """
    if name is None:
        return RuleSet(version=0, judges={})
    if name not in RULE_SETS:
        raise ConfigError(f"no set of rules is called {name!r}: there are {', '.join(RULE_SETS)}")
    return RULE_SETS[name]


def rules_sha256(name: str | None) -> str:
    """The identity of a set of rules at its version."""
    return hashlib.sha256(f"rules:{name}:{load_rules(name).version}".encode()).hexdigest()


def check_rules(name: str | None, agents: Sequence[str], problems: Sequence[Problem]) -> None:
    """Refuse to let the rule coach teach agents it has no rules for, on problems it cannot read.

    Where the words do not settle the number, any program that prints one gets `UNSETTLED` points.

    Raises:
        ConfigError: An agent has no rules, or a problem is beyond them.
    """
    rules = load_rules(name)
    if without := [agent for agent in agents if rules.judge_of(agent) is None]:
        raise ConfigError(f"the rule coach has no rules for {', '.join(without)}: {_NAME_ANOTHER}")
    unread = [one for one in problems if rules.by_words and read_story(one.statement) is None]
    if unread:
        [(dataset, count)] = Counter(problem.dataset for problem in unread).most_common(1)
        of = sum(problem.dataset == dataset for problem in problems)
        raise ConfigError(
            f"the rule coach cannot read {count} of {of} problems of {dataset}: {_NAME_ANOTHER}"
        )
