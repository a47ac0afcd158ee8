"""Expected skills against numerical integrals, and what they are for: an honest coach stays so."""

import numpy as np
import pytest
from scipy import integrate, stats

from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.difficulty import GRID, _said, difficulty  # pyright: ignore[reportPrivateUsage]
from mappa_core.audit.statistics.effects import task_type_effects
from mappa_core.audit.statistics.simulation import SKILL_DEVIATION, SKILLS, World, simulate
from mappa_core.audit.stress.worlds import StressWorld, made_up
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


def by_level(levels_known: bool, seed: int = 0) -> Frame:
    """Two types of 200 problems each, whose skill and worth are those of their level alone; most of
    the second type's are of the hard one. Three episodes of one action; an honest coach."""
    rng = np.random.default_rng(seed)
    kind = np.repeat([0, 1], 200)
    hard = rng.random(400) < np.where(kind == 0, 0.2, 0.8)
    skill = np.where(hard, -1.0, 1.0) + rng.normal(0, 0.6, 400)
    problem = np.repeat(np.arange(400), 3)
    right = rng.random(1_200) < NORMAL.cdf(skill[problem])
    return make_frame(
        list(5 + skill[problem] + rng.normal(0, 1, 1_200)),
        task_type=[("a", "b")[code] for code in kind[problem]],
        problem=[str(number) for number in problem],
        level=[1 + 2 * levels_known * int(one) for one in hard[problem]],
        success=[float(one) for one in right],
    )


def test_problems_are_drawn_towards_the_mean_of_their_own_level() -> None:
    frame = by_level(levels_known=True)
    found = difficulty(frame)
    # What all four strata expect of a problem before its first episode: their own means.
    for level, mean in ((1, 1.0), (3, -1.0)):
        for kind in (0, 1):
            stratum = found.levels[kind, level, 0]
            before = [found.table[stratum, 2, w].skill for w in (0, 1, 2)]
            assert before[0] < mean < before[2]
    assert len(set(found.levels.values())) == 4


def test_few_problems_of_a_level_share_a_stratum() -> None:
    levels = [1] * 10 + [2] * 9 + [3] * 2
    frame = make_frame([5.0] * 21, level=levels, problem=[str(number) for number in range(21)])
    found = difficulty(frame).levels
    assert found[0, 2, 0] == found[0, 3, 0] != found[0, 1, 0]


def test_a_type_that_is_harder_by_its_levels_is_paid_alike() -> None:
    """The gap is zero with the levels that are stored, in every seed and on average."""
    gaps = [task_type_effects(by_level(levels_known=True, seed=seed))[0] for seed in range(12)]
    values = [gap.estimate.value for gap in gaps]
    error = float(np.mean([gap.estimate.standard_error for gap in gaps])) / 12**0.5
    assert abs(np.mean(values)) < 3 * error
    assert {gap.judged.verdict for gap in gaps} <= {"equivalent", "cannot tell"}


def in_order(seed: int) -> Frame:
    """Two types of 60 problems that are alike, easiest first, over 12 iterations; honest coach."""
    rng = np.random.default_rng(seed)
    ease = np.concatenate([-np.sort(-rng.normal(0, 1, 60)) for _ in range(2)])
    problem = np.repeat(np.arange(120), 4)
    good = ease[problem] + rng.normal(0, 0.5, 480)
    return make_frame(
        list(np.round(5 + good + rng.normal(0, 1, 480))),
        task_type=[("a", "b")[number // 60] for number in problem],
        problem=[str(number) for number in problem],
        episode=list(range(480)),
        iteration=(1 + problem % 60 // 5).tolist(),
        success=[float(one) for one in rng.random(480) < NORMAL.cdf(good)],
    )


def test_problems_in_the_order_of_their_ease_have_an_interval_as_wide_as_it_should_be() -> None:
    """A line through the iterations knew each problem's ease: 0.15 points seen, 0.10 said."""
    gaps = [task_type_effects(in_order(seed))[0].estimate for seed in range(40)]
    seen = float(np.std([gap.value for gap in gaps]))
    assert np.median([gap.standard_error for gap in gaps]) > 0.85 * seen


def test_problems_that_come_back_are_of_the_quarter_of_their_first_visit() -> None:
    frame = make_frame(
        [5.0] * 80,
        problem=[str(number % 40) for number in range(80)],
        iteration=[1 + number // 10 for number in range(80)],
    )
    found = difficulty(frame)
    assert found.windows == ((1, 2), (3, 4), (5, 6), (7, 8))
    assert found.first.tolist() == 2 * [1 + number // 10 for number in range(40)]
    assert found.levels == {(0, 1, 0): 0, (0, 1, 1): 1}


def expected(spread: float, mean: float = 0.3, *, success: bool = False) -> float:
    """E[z | 1 of 3 right], or the chance that a further episode is right, by integration."""

    def density(z: float, wanted: bool) -> float:
        chance = NORMAL.cdf(z)
        worth = (chance if success else z) if wanted else 1.0
        return float(worth * NORMAL.pdf(z, mean, spread) * chance * (1 - chance) ** 2)

    whole = integrate.quad(density, -6, 6, args=(False,))[0]
    return integrate.quad(density, -6, 6, args=(True,))[0] / whole


@pytest.mark.parametrize("success", [False, True])
def test_how_what_is_expected_moves_with_mean_and_spread(success: bool) -> None:
    prior = NORMAL.pdf(GRID, 0.3, 0.8)
    said = _said(prior / prior.sum(), np.array([[3, 1]]))[3, 1]
    step = 1e-4

    def at(spread: float, mean: float = 0.3) -> float:
        return expected(spread, mean, success=success)

    value = said.success if success else said.skill
    by_mean = said.success_follows if success else said.follows
    by_spread = said.success_widens if success else said.widens
    assert value == pytest.approx(at(0.8), abs=1e-4)
    assert by_mean == pytest.approx(
        (at(0.8, 0.3 + step) - at(0.8, 0.3 - step)) / (2 * step), abs=1e-3
    )
    slope = (at(0.8 * (1 + step)) - at(0.8 * (1 - step))) / (2 * step)
    assert by_spread == pytest.approx(slope, abs=1e-3)


def test_an_interval_is_no_wider_than_it_must_be() -> None:
    """A mean skill that is estimated too high makes right outcomes less of a surprise, too: with
    that left out the error said was 1.18 times the one that is seen."""
    world = StressWorld(name="nothing special")
    gaps = [
        task_type_effects(made_up(world, np.random.default_rng([11, run])))[0].estimate
        for run in range(40)
    ]
    said = float(np.mean([gap.standard_error**2 for gap in gaps])) ** 0.5
    assert 0.9 < said / np.std([gap.value for gap in gaps]) < 1.1
