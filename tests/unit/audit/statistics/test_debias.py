import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.audit.frame import Frame
from mappa_core.audit.records import Correction
from mappa_core.audit.statistics.debias import (
    CAP_POINTS,
    corrected,
    correction,
    correction_terms,
    points_off,
    shrunk,
)
from mappa_core.audit.statistics.effects import task_type_effects
from mappa_core.audit.statistics.simulation import World, simulate
from mappa_core.core import ids

RUN = ids.content_id("run", "debias")


def correction_of(frame: Frame) -> Correction:
    terms = correction_terms(task_type_effects(frame))
    return correction(terms, run_id=RUN, iteration=9, coach="c", rubric_sha256="aa")


def test_what_is_left_of_a_planted_bias_is_small() -> None:
    world = World(planted="constant", points=2.0, problems=100, actions=12)
    left = []
    for seed in range(10):
        frame = simulate(world, np.random.default_rng(seed))
        favoured = frame.task_type.codes == 1
        off = points_off(correction_of(frame).terms, frame)
        assert not off[~favoured].any()
        left.append(np.abs((2.0 - off)[favoured]).mean())
    # A tenth, and what the ends of the scale cut off.
    assert np.mean(left) < 0.3


def test_without_bias_it_takes_nothing_off() -> None:
    touched = 0
    for seed in range(20):
        frame = simulate(World(), np.random.default_rng(seed))
        touched += bool(points_off(correction_of(frame).terms, frame).any())
    assert touched <= 3


def test_shrinking_by_hand() -> None:
    # 1 - (0.5 / 1)^2, and nothing where the error is as large as the estimate.
    assert shrunk(1.0, 0.5) == 0.75
    assert shrunk(-1.0, 0.5) == -0.75
    assert shrunk(1.0, 1.0) == 0.0
    assert shrunk(9.0, 0.1) == CAP_POINTS
    assert shrunk(1.0, float("inf")) == 0.0


@given(st.floats(-10, 10), st.floats(0.001, 10))
def test_shrinking_never_turns_nor_overshoots(estimate: float, error: float) -> None:
    assert abs(shrunk(estimate, error)) <= min(abs(estimate), CAP_POINTS)
    assert shrunk(estimate, error) * estimate >= 0


def test_corrected_scores_stay_scores() -> None:
    frame = simulate(World(planted="constant", points=2.0), np.random.default_rng(0))
    made = correction_of(frame)
    scores = corrected(made, frame)
    assert scores.min() >= 0
    assert scores.max() <= 10
    assert made == correction_of(frame)
    gap = [scores[frame.task_type.codes == code].mean() for code in (0, 1)]
    assert abs(gap[1] - gap[0]) < 0.6
