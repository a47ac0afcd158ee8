from dataclasses import replace

import numpy as np
import pytest
import statsmodels.formula.api as smf
from pandas import DataFrame

from mappa_core.audit.frame import Factor, Frame
from mappa_core.audit.statistics.design import Regression, Work, whole_design
from mappa_core.audit.statistics.difficulty import difficulty
from mappa_core.audit.statistics.effects import (
    associations,
    bias_family,
    cell_effects,
    task_type_effects,
    words,
)
from mappa_core.audit.statistics.observational import ALARMS, overall_word
from mappa_core.audit.statistics.sensitivity import unknown
from mappa_core.audit.statistics.simulation import FAVOURED, OTHER, World, simulate
from mappa_core.audit.statistics.trends import growth
from mappa_core.audit.stress.worlds import Ease, StressWorld, made_up
from tests.unit.audit.frames import make_frame

RNG = np.random.default_rng


def test_the_effect_is_the_regressions() -> None:
    frame = simulate(World(planted="constant", points=1.0), RNG(0))
    skills, length = difficulty(frame), np.log2(1 + frame.tokens)
    for code in (0, 1):
        length[frame.task_type.codes == code] -= length[frame.task_type.codes == code].mean()
    table = DataFrame(
        {
            "score": frame.score,
            "favoured": frame.task_type.codes,
            "skill": skills.others,
            "surprise": skills.surprise,
            "agent": frame.agent.codes,
            "length": length,
            "failed": frame.tool_failed.astype(float),
            # Ten iterations in quarters of 3, 3, 2 and 2; no problem comes back.
            "quarter": np.searchsorted([3, 6, 8, 10], frame.iteration),
        }
    )
    formula = "score ~ favoured + skill + surprise + C(agent) + length + failed + C(quarter)"
    (overall, *_) = task_type_effects(frame)
    fitted = smf.ols(formula, table).fit()
    assert overall.estimate.value == pytest.approx(fitted.params["favoured"])
    assert (overall.subject, overall.against, overall.stratum) == (FAVOURED, OTHER, "all")
    assert (overall.actions, overall.problems) == (1200, 100)
    # What holding difficulty constant took off, against the regression without it.
    raw = smf.ols("score ~ favoured + C(agent) + length + failed + C(quarter)", table).fit()
    moved = raw.params["favoured"] - fitted.params["favoured"]
    assert overall.judged.unknown.measured == pytest.approx(abs(moved))


def test_a_bias_that_cancels_is_found_within_the_outcomes() -> None:
    frame = simulate(World(planted="cancelling", points=1.5), RNG(1))
    verdicts = {effect.stratum: effect.judged.verdict for effect in task_type_effects(frame)}
    assert {verdicts["right"], verdicts["wrong"]} <= set(ALARMS)
    assert verdicts["all"] not in ALARMS


def test_better_work_is_no_bias() -> None:
    """The favoured type is easier: its right and its wrong work are both better."""
    frame = simulate(World(problems=400, correlation=0.0), RNG(2))
    for outcome in (0.0, 1.0):
        rows = frame.take(frame.success == outcome)
        raw = [rows.score[rows.task_type.codes == code].mean() for code in (0, 1)]
        assert raw[1] - raw[0] > 0.08
    assert all(effect.judged.verdict not in ALARMS for effect in task_type_effects(frame))


def test_three_types_are_compared_pair_by_pair() -> None:
    frame = make_frame(
        [4, 6, 7, 9, 1, 3],
        task_type=["a", "a", "b", "b", "c", "c"],
        problem=["1", "2", "3", "4", "5", "6"],
    )
    whole = [e for e in task_type_effects(frame) if e.stratum == "all"]
    # Means 5, 8 and 2.
    found = {(e.subject, e.against): e.estimate.value for e in whole}
    assert found == pytest.approx({("b", "a"): 3.0, ("c", "a"): -3.0, ("c", "b"): -6.0})


def test_only_the_pairs_of_a_favoured_type_are_suspected() -> None:
    frame = three_types(3.0, RNG(5))
    found = {(e.subject, e.against): e.judged.verdict for e in task_type_effects(frame)[:3]}
    assert found["c", "a"] in ALARMS
    assert found["c", "b"] in ALARMS
    assert found["b", "a"] not in ALARMS


def three_types(points: float, rng: np.random.Generator) -> Frame:
    frame = simulate(World(problems=90), rng)
    kind = frame.problem.codes % 3
    factor = Factor(codes=kind, names=("a", "b", "c"))
    return replace(frame, task_type=factor, score=(frame.score + points * (kind == 2)).clip(0, 10))


def test_agents_that_are_paid_in_opposite_ways_are_not_equivalent() -> None:
    frame = simulate(World(problems=100), RNG(6))
    points = np.array([2.0, -2.0, 0.0])[frame.agent.codes] * frame.task_type.codes
    frame = replace(frame, score=(frame.score + points).clip(0, 10))
    assert all(e.judged.verdict not in ALARMS for e in task_type_effects(frame) if not e.cell)
    cells = {
        (e.cell, e.stratum): e.judged.verdict for e in cell_effects(frame, task_type_effects(frame))
    }
    for agent in ("solver", "executor"):
        assert cells[agent, "all"] in ALARMS
    assert cells["verifier", "all"] not in ALARMS


def test_a_gap_that_turns_round_is_found_in_the_quarters_of_the_run() -> None:
    frame = simulate(World(problems=100, iterations=8), RNG(7))
    points = np.where(frame.iteration <= 4, 2.0, -2.0) * frame.task_type.codes
    frame = replace(frame, score=(frame.score + points).clip(0, 10))
    (whole, *_) = task_type_effects(frame)
    assert whole.judged.verdict not in ALARMS
    quarters = [
        e for e in cell_effects(frame, task_type_effects(frame)) if e.cell.startswith("iterations")
    ]
    assert next(e.cell for e in quarters) == "iterations 1 to 2"
    assert all(e.judged.verdict in ALARMS for e in quarters)


@pytest.mark.parametrize("by", ["agent", "outcome"])
def test_a_bias_that_swaps_over_half_way_is_found_by_agent_and_by_outcome(by: str) -> None:
    """Over agents (outcomes) of a half and over halves of an agent (outcome) it cancels."""
    frame = simulate(World(problems=200, iterations=8), RNG(11))
    frame = frame.take(frame.agent.codes < 2)
    first = frame.agent.codes == 0 if by == "agent" else frame.success == 1
    points = np.where(first == (frame.iteration <= 4), 1.5, -1.5) * frame.task_type.codes
    frame = replace(frame, score=(frame.score + points).clip(0, 10))
    found = [e for e in bias_family(frame) if e.judged.verdict in ALARMS]
    part = "solver, iterations 1 to 2" if by == "agent" else "iterations 1 to 2"
    assert ("right", part) in {(e.stratum, e.cell) for e in found}
    assert all("iterations" in e.cell for e in found)


@pytest.mark.slow
def test_an_honest_coach_of_a_large_run_is_often_called_equivalent() -> None:
    """800 problems of each type, 6 episodes by 2 agents, noise 0.4: docs/audit.md says half."""
    said: list[str] = []
    for run in range(60):
        large = World(problems=800, actions=12, iterations=8, deviation=0.4, agents=("a", "b"))
        said.append(overall_word(words(bias_family(simulate(large, RNG([21, run]))))))
    assert set(said) <= {"equivalent", "cannot tell"}
    assert 20 <= said.count("equivalent") <= 40


def test_where_a_quarter_lacks_a_type_no_bias_is_ruled_out_there() -> None:
    frame = simulate(World(problems=60, iterations=8), RNG(12))
    frame = frame.take((frame.agent.codes < 2) & (frame.success == 1))
    assert not [e for e in bias_family(frame) if np.isnan(e.estimate.value)]
    frame = frame.take((frame.task_type.codes == 0) | (frame.iteration > 2))
    lacking = [e for e in bias_family(frame) if np.isnan(e.estimate.value)]
    part = "iterations 1 to 2"
    cells = {(e.cell, e.stratum, e.actions) for e in lacking}
    assert cells == {
        (cell, stratum, int(rows.sum()))
        for cell, rows in (
            (part, frame.iteration <= 2),
            (f"solver, {part}", (frame.iteration <= 2) & (frame.agent.codes == 0)),
            (f"executor, {part}", (frame.iteration <= 2) & (frame.agent.codes == 1)),
        )
        for stratum in ("all", "right")
    }
    assert {e.judged.verdict for e in lacking} == {"cannot tell"}


def test_an_agent_that_plays_one_type_alone_is_not_compared() -> None:
    frame = simulate(World(problems=60), RNG(13))
    frame = frame.take((frame.task_type.codes == 0) | (frame.agent.codes != 1))
    assert not [e for e in bias_family(frame) if e.cell.startswith("executor")]


def test_pay_for_length_reaches_the_type_whose_work_is_longer() -> None:
    frame = simulate(World(problems=100), RNG(8))
    tokens = frame.tokens * (1 + 3 * frame.task_type.codes)
    frame = replace(
        frame, tokens=tokens, score=(frame.score + 0.8 * np.log2(tokens) - 6).clip(0, 10)
    )
    (whole, *_) = task_type_effects(frame)
    assert whole.judged.verdict in ALARMS
    (length,) = [e for e in cell_effects(frame, task_type_effects(frame)) if e.factor == "length"]
    assert length.estimate.value == pytest.approx(0.8, abs=0.15)
    # Longer work may deserve more, for all that rows can tell.
    assert length.judged.verdict == "cannot tell"


def test_where_no_problem_was_played_twice_nothing_is_more_than_suspected() -> None:
    frame = simulate(World(problems=200, actions=3, planted="constant", points=3.0), RNG(9))
    words = {e.judged.verdict for e in task_type_effects(frame)}
    assert words == {"suspected"}


def test_lost_scores_widen_what_is_said() -> None:
    frame = simulate(World(problems=100), RNG(10))
    lost = (frame.task_type.codes == 1) & (frame.score < 5) & (RNG(0).random(len(frame)) < 0.5)
    frame = replace(frame, score=np.where(lost, np.nan, frame.score))
    (whole, *_) = task_type_effects(frame)
    # The gap seems real, and is not once the lost scores are thought of.
    assert whole.estimate.p_value < 0.05
    assert whole.judged.verdict == "cannot tell"
    assert whole.judged.unknown.missing_low < -0.5


def test_bounds_of_lost_scores_by_hand() -> None:
    """The type's two problems: one scored 8, one unscored, so its mean lies in [4, 9]."""
    frame = make_frame([8, float("nan"), 6, 6], task_type=["b", "b", "a", "a"])
    work = Work.of(frame)
    model = Regression.of(work, whole_design(work))
    found = unknown(model, model.where(("task_type:b", 1.0)), 0.0)
    assert (found.missing_low, found.missing_high) == pytest.approx((-4.0, 1.0))


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


def test_an_honest_coach_is_audited_where_nearly_all_work_is_right() -> None:
    """Skills are nearly constants there, and hid by rounding that one column repeats another."""
    ceiling = StressWorld(name="ceiling", ease=Ease(types=(3.2, 2.2)))
    assert not set(ALARMS) & set(words(bias_family(made_up(ceiling, RNG([0, 102])))))
