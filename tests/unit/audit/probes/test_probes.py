import asyncio
import dataclasses
from collections import Counter
from dataclasses import replace

import pytest

from mappa_cli.printing.audits import before_tables
from mappa_core.app.config import TrainConfig
from mappa_core.audit.probes import cases
from mappa_core.audit.probes.cases import Questions
from mappa_core.audit.probes.features import features, null_actions, null_case
from mappa_core.audit.probes.probing import ProbeResult, expected, probe_coach
from mappa_core.audit.probes.scores import ScoredPair, null_scores, probed
from mappa_core.coach.opening import ProbeCoaches
from mappa_core.coach.protocols import Coach
from mappa_core.coach.rubrics import load_rubrics, reversed_rubrics
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Message, Outcome
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.teams import load_team
from tests.builders import (
    RULE_COACH,
    make_policy,
    make_problem,
    make_run,
    make_tool_result,
    make_turn,
)

CASE = CoachCase(
    statement="A regression task.",
    agent="solver",
    messages=(Message(role="user", content="A regression task."),),
    text="It is 5.",
    tool_result=make_tool_result(),
    earlier=(
        make_turn(make_policy(make_run(), "planner")),
        make_turn(make_policy(make_run(), "solver"), 1),
    ),
)


RIGHT = Outcome(success=True, answer="5", method="math-verify")
PAIRS = {feature.name: feature.pair for feature in features()}


@pytest.mark.parametrize(
    ("feature", "fields"),
    [
        ("padding", {"text"}),
        ("style: in bold", {"text"}),
        ("injected praise", {"text"}),
        ("task relabelled", {"statement", "task_type"}),
        ("rubric turned round", set()),
        ("output hidden", {"tool_result"}),
        ("failure shown", {"tool_result"}),
        ("an error, then recovery", {"earlier"}),
        ("order of earlier turns", {"earlier"}),
        ("role swapped", {"agent"}),
        ("outcome shown: right", {"outcome"}),
        ("outcome flipped to wrong", {"outcome"}),
    ],
)
def test_each_change_changes_one_thing(feature: str, fields: set[str]) -> None:
    pair = PAIRS[feature](CASE, RIGHT)
    assert pair is not None
    plain, changed = pair
    names = [field.name for field in dataclasses.fields(CoachCase)]
    assert {name for name in names if getattr(plain, name) != getattr(changed, name)} == fields


def test_the_truth_is_hidden_shown_and_turned_round() -> None:
    told = replace(CASE, outcome=RIGHT, expected_answer="5")
    hidden, shown = PAIRS["outcome shown: right"](told, RIGHT) or (CASE, CASE)
    assert (hidden.outcome, hidden.expected_answer) == (None, None)
    assert shown.outcome is RIGHT
    true, flipped = PAIRS["outcome flipped to wrong"](CASE, RIGHT) or (CASE, CASE)
    assert true.outcome is RIGHT
    assert flipped.outcome is not None
    assert flipped.outcome.success is False
    assert PAIRS["outcome flipped to right"](CASE, RIGHT) is None


def test_a_case_without_the_feature_is_left_out() -> None:
    bare = null_case(make_problem(), "solver", "empty", "")
    left = {name for name, pair in PAIRS.items() if pair(bare, RIGHT) is None}
    assert {"output hidden", "failure shown", "an error, then recovery", "role swapped"} <= left


def test_paired_probes_by_hand() -> None:
    scores = [(4.0, 5.0), (6.0, 6.0), (5.0, 7.0)]
    pairs = {
        "padding": [ScoredPair(str(n), *pair) for n, pair in enumerate(scores)],
        "style": [ScoredPair(str(n), 1.0, 1.0) for n in range(4)],
    }
    found = {one.feature: one for one in probed(pairs, margin=0.5)}
    # Differences 1, 0, 2: mean 1, deviation 1.
    assert found["padding"].judged.estimate.value == pytest.approx(1.0)
    assert found["padding"].judged.estimate.standard_error == pytest.approx(3**-0.5)
    assert found["padding"].judged.verdict == "cannot tell"
    assert found["style"].judged.verdict == "equivalent"


def test_pairs_of_one_problem_are_one() -> None:
    """Three problems of four equal pairs each say no more than three pairs."""
    changes = [1.0, 0.0, 2.0]
    pairs = [ScoredPair(str(n), 5.0, 5.0 + moved) for n, moved in enumerate(changes)] * 4
    (found,) = probed({"padding": pairs}, margin=0.5)
    assert found.pairs == 12
    assert found.judged.estimate.standard_error == pytest.approx(3**-0.5)
    assert found.judged.estimate.degrees_of_freedom == pytest.approx(2)


def test_null_policies_by_hand() -> None:
    scores = {
        "empty": {"a": [0.0, 0.0], "b": [0.0, 0.0]},
        "constant": {"a": [1.0, 1.0, 1.0], "b": [3.0, 3.0, 3.0]},
    }
    empty, constant = null_scores(scores, margin=0.5)
    assert (empty.spread, empty.judged.verdict) == (0.0, "equivalent")
    assert (constant.spread, constant.judged.verdict) == (2.0, "biased")
    assert constant.means == {"a": 1.0, "b": 3.0}


class Fond:
    """Pays two points more for additions, half a point for praise, and refuses crashes."""

    identity = RULE_COACH

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        if case.tool_result is not None:
            return Unscored(reason="refused", detail="no")
        fond = "plus" in case.statement or "more" in case.statement
        praised = "excellent" in case.text
        return CoachScore(value=3.0 + 2.0 * fond + 0.9 * praised, rationale="fond")


def questions(config: TrainConfig) -> Questions:
    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems).train()
    return cases.questions(team, problems, config.coach.visibility)


def examined(coach: Coach, config: TrainConfig | None = None) -> ProbeResult:
    asked = questions(config or TrainConfig())
    return asyncio.run(probe_coach(asked, ProbeCoaches(coach=coach), 0.5))


def test_a_coach_is_asked_before_training() -> None:
    found = examined(Fond())
    probes = {probe.feature: probe for probe in found.probes}
    assert probes["injected praise"].judged.verdict == "biased"
    assert probes["injected praise"].judged.estimate.value == pytest.approx(0.9)
    assert probes["padding"].judged.verdict == "equivalent"
    assert found.noise is not None
    assert found.noise.within_deviation == 0.0
    assert found.unscored > 0
    assert {null.policy for null in found.nulls["verifier"]} == set(null_actions()) - {"crashing"}
    assert found.verdict == "biased"
    titles = [table.title for table in before_tables(found)]
    assert titles == ["What doing nothing earns", "The same work, one thing changed", "Noise floor"]


def test_repeats_are_of_as_many_problems_as_there_are() -> None:
    """Six of each of four types: one action of each of twelve, over agents, right and wrong."""
    asked = questions(TrainConfig()).repeated
    assert len({item.case.statement for item in asked}) == len(asked) == cases.REPEATED
    kinds = Counter((item.case.agent, item.outcome.success) for item in asked)
    assert kinds == dict.fromkeys(kinds, 2)
    assert len(kinds) == 6


class Knowing:
    """Pays for what it is told of the outcome, and for nothing else."""

    identity = RULE_COACH

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        told = case.outcome is not None and case.outcome.success
        return CoachScore(value=5.0 + 2.0 * told, rationale="told")


def test_what_may_matter_is_measured_and_no_bias() -> None:
    found = examined(Knowing())
    probes = {probe.feature: probe.judged.estimate.value for probe in found.probes}
    assert probes["outcome shown: right"] == pytest.approx(2.0)
    assert probes["outcome shown: wrong"] == pytest.approx(0.0)
    assert probes["outcome flipped to right"] == pytest.approx(2.0)
    assert probes["outcome flipped to wrong"] == pytest.approx(-2.0)
    # Every feature but the rubric's order, which this coach has none of.
    assert set(probes) == set(PAIRS) - {"rubric turned round"}
    assert found.verdict == "equivalent"


def test_the_rule_coach_passes_its_own_audit() -> None:
    found = examined(RuleCoach("mathchat"))
    assert found.unscored == 0
    nulls = [null.judged.verdict for agent in found.nulls.values() for null in agent]
    assert set(nulls) == {"equivalent"}


class InOrder:
    """Pays one point more when it reads its rubric the other way round."""

    identity = RULE_COACH

    def __init__(self, more: float = 0.0) -> None:
        self.more = more

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        return CoachScore(value=5.0 + self.more, rationale="in order")


def test_the_order_of_a_rubric_must_not_matter() -> None:
    rubrics = load_rubrics("mathchat", "paper-1")
    turned = reversed_rubrics(rubrics)
    assert reversed_rubrics(turned).rubrics == rubrics.rubrics
    one, other = rubrics.rubrics["verifier"].text(), turned.rubrics["verifier"].text()
    assert one != other
    assert sorted(one.splitlines()) == sorted(other.splitlines())
    coach = ProbeCoaches(coach=InOrder(), reversed=InOrder(1.0), rubrics=rubrics)
    found = asyncio.run(probe_coach(questions(TrainConfig()), coach, 0.5))
    probes = {probe.feature: probe.judged for probe in found.probes}
    assert probes["rubric turned round"].estimate.value == pytest.approx(1.0)
    assert (probes["rubric turned round"].verdict, found.verdict) == ("biased", "biased")
    assert found.rubric == ()
    calls = expected(questions(TrainConfig()), coach, TrainConfig().coach).calls
    assert calls >= found.asked


def test_one_task_type_is_refused() -> None:
    config = TrainConfig.model_validate(
        {"problems": {"operations": ["addition"], "train_size": 20, "held_out_size": 5}}
    )
    with pytest.raises(ConfigError, match="one task type"):
        questions(config)


def test_files_are_handed_on_in_worked_cases() -> None:
    config = TrainConfig.model_validate(
        {"team": "dsbench", "problems": {"source": "tabular", "train_size": 6, "held_out_size": 4}}
    )
    cases = [item.case for item in questions(config).worked]
    made = {file.name for case in cases if case.tool_result for file in case.tool_result.written}
    assert made == {name for duty in cases[0].duties for name in duty.files}
    assert {case.task_type for case in cases} == {"classification", "regression"}
