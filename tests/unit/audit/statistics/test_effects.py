from dataclasses import replace

import numpy as np
import pytest
import statsmodels.formula.api as smf
from pandas import DataFrame

from mappa_core.audit.statistics.effects import associations, task_type_effects
from mappa_core.audit.statistics.simulation import FAVOURED, OTHER, World, simulate
from mappa_core.audit.statistics.trends import growth
from tests.unit.audit.frames import make_frame

RNG = np.random.default_rng


def test_the_effect_is_the_regressions() -> None:
    frame = simulate(World(planted="constant", points=1.0), RNG(0))
    table = DataFrame(
        {
            "score": frame.score,
            "favoured": frame.task_type.codes,
            "success": frame.success,
            "agent": frame.agent.codes,
            "length": np.log2(1 + frame.tokens),
            "failed": frame.tool_failed.astype(float),
            "iteration": frame.iteration,
        }
    )
    model = smf.ols("score ~ favoured + success + C(agent) + length + failed + iteration", table)
    (overall, *_) = task_type_effects(frame)
    assert overall.estimate.value == pytest.approx(model.fit().params["favoured"])
    assert (overall.subject, overall.against, overall.stratum) == (FAVOURED, OTHER, "all")
    assert (overall.actions, overall.problems) == (600, 100)


def test_a_bias_that_cancels_is_found_within_the_outcomes() -> None:
    frame = simulate(World(planted="cancelling", points=1.0), RNG(1))
    verdicts = {effect.stratum: effect.judged.verdict for effect in task_type_effects(frame)}
    assert verdicts["right"] == verdicts["wrong"] == "biased"
    assert verdicts["all"] != "biased"


def test_better_work_is_no_bias() -> None:
    """The favoured type comes out right more often and so scores higher; that is deserved."""
    frame = simulate(World(problems=400, correlation=0.0), RNG(2))
    raw = [frame.score[frame.task_type.codes == code].mean() for code in (0, 1)]
    assert raw[1] - raw[0] > 0.1
    assert all(effect.judged.verdict != "biased" for effect in task_type_effects(frame))


def test_three_types_are_each_compared_with_the_mean_of_the_others() -> None:
    frame = make_frame(
        [4, 6, 7, 9, 1, 3],
        task_type=["a", "a", "b", "b", "c", "c"],
        problem=["1", "2", "3", "4", "5", "6"],
    )
    found = {e.subject: e for e in task_type_effects(frame) if e.stratum == "all"}
    # Means 5, 8 and 2.
    values = [found[name].estimate.value for name in "abc"]
    assert values == pytest.approx([0.0, 4.5, -4.5])
    # The mean of all is 5, and `b` is 3 above it.
    assert found["b"].excess == pytest.approx(3.0)


@pytest.mark.parametrize("frame", [make_frame([1, 2]), make_frame([1], task_type=["a"])])
def test_one_type_or_problem_has_nothing_to_compare(frame: object) -> None:
    assert task_type_effects(frame) == ()  # pyright: ignore[reportArgumentType]


def test_a_type_with_one_problem_cannot_tell() -> None:
    frame = make_frame(
        [5, 5.1, 4.9, 9, 9.1, 9.2],
        task_type=["a", "a", "a", "b", "b", "b"],
        problem=["1", "2", "3", "4", "4", "4"],
    )
    assert {e.judged.verdict for e in task_type_effects(frame)} == {"cannot tell"}


def test_what_is_planted_beside_the_type_is_an_association() -> None:
    frame = simulate(World(problems=100), RNG(3))
    failed = replace(frame, score=(frame.score - 2.0 * frame.tool_failed).clip(0, 10))
    found = {(e.factor, e.subject): e.estimate for e in associations(failed)}
    low, high = found["tool", "failed"].interval()
    assert low <= -2 <= high
    assert found["outcome", "right"].value == pytest.approx(1.0, abs=0.3)


def test_growth_by_hand() -> None:
    frame = make_frame(
        [5] * 8,
        task_type=["a"] * 4 + ["b"] * 4,
        problem=["1", "2", "1", "2", "3", "4", "3", "4"],
        iteration=[1, 1, 2, 2] * 2,
        success=[0, 0, 1, 1, 1, 0, 1, 0],
    )
    found = growth(frame, 0)
    assert found is not None
    assert found.estimate.value == pytest.approx(1.0)
