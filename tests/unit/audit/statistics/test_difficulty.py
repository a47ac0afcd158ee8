"""Expected skills against numerical integrals, and what they are for: an honest coach stays so."""

import numpy as np
import pytest
from scipy import integrate, stats

from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.difficulty import difficulty
from mappa_core.audit.statistics.simulation import SKILL_DEVIATION, SKILLS, World, simulate
from tests.unit.audit.frames import make_frame

NORMAL = stats.norm


def many(seed: int = 0) -> Frame:
    return simulate(World(problems=1_000, actions=12), np.random.default_rng(seed))


def test_the_expected_skill_is_the_integral() -> None:
    """A normal skill of the type's mean and spread, given 3 of 4 episodes right."""
    found = difficulty(many())
    (right,) = {found.table[0, 4, 3].skill}
    mean, spread = SKILLS[0], SKILL_DEVIATION

    def density(z: float, power: int) -> float:
        chance = NORMAL.cdf(z)
        return float(z**power * NORMAL.pdf(z, mean, spread) * chance**3 * (1 - chance))

    whole = integrate.quad(density, -6, 6, args=(0,))[0]
    expected = integrate.quad(density, -6, 6, args=(1,))[0] / whole
    # The type's mean and spread are estimated from 1,000 problems.
    assert right == pytest.approx(expected, abs=0.06)


def test_the_surprise_is_nothing_on_average_in_each_type() -> None:
    frame = many(1)
    found = difficulty(frame)
    for code in (0, 1):
        assert found.surprise[frame.task_type.codes == code].mean() == pytest.approx(0, abs=0.01)


def test_the_others_know_nothing_of_the_own_outcome() -> None:
    """Two episodes on each problem: each is judged by the other's outcome."""
    frame = make_frame(
        [5.0] * 4, problem=["1", "1", "2", "2"], episode=[1, 2, 3, 4], success=[1, 0, 1, 1]
    )
    others = difficulty(frame).others
    assert others[0] < others[1]
    assert others[1] == others[2] == others[3]


@pytest.mark.parametrize(("episodes", "measured"), [([1, 2, 3, 4, 5, 6], True), ([1] * 6, False)])
def test_difficulty_is_measured_where_problems_have_several_episodes(
    episodes: list[int], measured: bool
) -> None:
    frame = make_frame(
        [5.0] * 6,
        problem=["1", "1", "2", "2", "3", "3"],
        episode=[e + 10 * (i // 2) for i, e in enumerate(episodes)],
    )
    assert difficulty(frame).measured is measured
