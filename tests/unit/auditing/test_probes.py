import asyncio

import pytest

from flows.audit_before import examine_coach
from mappa_core.auditing.probes import changes, null_actions, null_case, null_scores, probed
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import ConfigError
from mappa_core.domain.records import CoachCase, CoachScore, Message, Unscored
from tests.builders import RULE_COACH, make_policy, make_run, make_tool_result, make_turn

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


@pytest.mark.parametrize(
    ("feature", "fields"),
    [
        ("padding", {"text"}),
        ("style: in bold", {"text"}),
        ("injected praise", {"text"}),
        ("task relabelled", {"statement"}),
        ("output hidden", {"tool_result"}),
        ("failure shown", {"tool_result"}),
        ("an error, then recovery", {"earlier"}),
        ("order of earlier turns", {"earlier"}),
        ("role swapped", {"agent"}),
    ],
)
def test_each_change_changes_one_thing(feature: str, fields: set[str]) -> None:
    changed = changes()[feature](CASE)
    assert changed is not None
    names = ("statement", "agent", "messages", "text", "tool_result", "earlier")
    assert {name for name in names if getattr(changed, name) != getattr(CASE, name)} == fields


def test_a_case_without_the_feature_is_left_out() -> None:
    bare = null_case("A task.", "solver", "empty", "")
    left = {name for name, change in changes().items() if change(bare) is None}
    assert {"output hidden", "failure shown", "an error, then recovery", "role swapped"} <= left


def test_paired_probes_by_hand() -> None:
    pairs = {"padding": [(4.0, 5.0), (6.0, 6.0), (5.0, 7.0)], "style": [(1.0, 1.0)] * 4}
    found = {one.feature: one for one in probed(pairs, margin=0.5)}
    # Differences 1, 0, 2: mean 1, deviation 1.
    assert found["padding"].judged.estimate.value == pytest.approx(1.0)
    assert found["padding"].judged.estimate.standard_error == pytest.approx(3**-0.5)
    assert found["padding"].judged.verdict == "cannot tell"
    assert found["style"].judged.verdict == "equivalent"


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


def test_a_real_coach_is_asked_before_training() -> None:
    found = asyncio.run(examine_coach(TrainConfig(), 0.5, Fond()))
    probes = {probe.feature: probe.judged for probe in found.probes}
    assert probes["injected praise"].verdict == "biased"
    assert probes["injected praise"].estimate.value == pytest.approx(0.9)
    assert probes["padding"].verdict == "equivalent"
    assert found.noise is not None
    assert found.noise.within_deviation == 0.0
    assert found.unscored > 0
    assert {null.policy for null in found.nulls["verifier"]} == set(null_actions()) - {"crashing"}
    assert len(found.tables()) == 3


def test_one_task_type_is_refused() -> None:
    config = TrainConfig.model_validate(
        {"problems": {"operations": ["addition"], "train_size": 20, "held_out_size": 5}}
    )
    with pytest.raises(ConfigError, match="one task type"):
        asyncio.run(examine_coach(config, 0.5, Fond()))
