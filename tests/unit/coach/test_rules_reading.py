"""The rule coach teaches only what it can read."""

import pytest

from mappa_core.coach.rules import check_rules
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem

STORY = "Ana has 14 pens and buys 27 more. How many pens does Ana have now?"
AIME = r"Find the sum of all integer bases $b>9$ for which $17_b$ is a divisor of $97_b$."
AGENTS = ("problem_solver", "code_executor", "verifier")


def problem(statement: str, dataset: str) -> Problem:
    return Problem(
        id=ids.problem_id(statement),
        dataset=dataset,
        task_type="any",
        level=0,
        statement=statement,
        answer="70",
    )


def test_stories_are_read() -> None:
    check_rules("mathchat", AGENTS, [problem(STORY, "arithmetic")])


def test_a_problem_that_it_cannot_read_is_refused_by_its_data_set() -> None:
    problems = [problem(STORY, "arithmetic"), problem(AIME, "aime")]
    with pytest.raises(ConfigError, match=r"cannot read 1 of 1 problems of aime: name a coach"):
        check_rules("mathchat", AGENTS, problems)


def test_rules_that_go_by_files_need_not_read() -> None:
    check_rules("dsbench", ("data_engineer", "modeler", "analyst"), [problem(AIME, "tabular")])


@pytest.mark.parametrize(
    ("rules", "agents"), [(None, ("speaker",)), ("mathchat", (*AGENTS, "speaker"))]
)
def test_an_agent_without_rules_is_refused(rules: str | None, agents: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="no rules for speaker: name a coach"):
        check_rules(rules, agents, [problem(STORY, "arithmetic")])
