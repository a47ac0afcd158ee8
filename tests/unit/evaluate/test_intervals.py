"""Intervals of few problems: by hand, and their coverage where the truth is known."""

import numpy as np
import pytest
from scipy import special

from mappa_core.evaluate.intervals import Floats, few_changes, share_interval

RUNS = 600
"""The standard error of a coverage of 0.95 is 0.009; 3 of them are allowed."""
LEAST = 0.92


def test_a_change_of_few_problems_by_hand() -> None:
    # s^2 = (0 + 2) / 16, and t(15) = 2.1314 for 95 %.
    low, high = few_changes(np.full(16, 0.5))
    reach = 2.1314 * (2 / 16 / 16) ** 0.5
    assert (low, high) == pytest.approx((0.5 - reach, 0.5 + reach), abs=1e-4)
    assert few_changes(np.array([0.5])) == (-1.0, 1.0)


def test_a_share_of_no_success_has_the_binomial_interval() -> None:
    # 1 - 0.025^(1 / 20).
    assert share_interval(np.zeros(20)) == pytest.approx((0.0, 0.16843), abs=1e-5)
    assert share_interval(np.ones(20)) == pytest.approx((0.83157, 1.0), abs=1e-5)
    assert share_interval(np.array([0.3])) == (0.0, 1.0)


@pytest.mark.parametrize("problems", [6, 12, 20, 48])
@pytest.mark.parametrize("episodes", [1, 8])
def test_a_gain_on_few_problems_is_covered(problems: int, episodes: int) -> None:
    # Most problems are hardly ever solved, and a gain comes on few of them.
    rng = np.random.default_rng([problems, episodes])
    before = rng.beta(0.2, 0.8, (RUNS, problems))
    after = special.expit(special.logit(before.clip(1e-9, 1 - 1e-9)) + 1.5)
    everywhere = rng.beta(0.2, 0.8, 200_000).clip(1e-9, 1 - 1e-9)
    gain = float((special.expit(special.logit(everywhere) + 1.5) - everywhere).mean())
    drawn = rng.binomial(episodes, after) - rng.binomial(episodes, before)
    ends = np.array([few_changes(row) for row in drawn / episodes])
    assert ((ends[:, 0] <= gain) & (gain <= ends[:, 1])).mean() >= LEAST


@pytest.mark.parametrize("problems", [6, 12, 20, 48])
@pytest.mark.parametrize("episodes", [1, 8, 32])
@pytest.mark.parametrize("rare", [0.06, 0.1, 0.2])
def test_a_gain_of_rare_problems_is_covered(problems: int, episodes: int, rare: float) -> None:
    """A share of problems goes from .02 to .98, others stay at .02; 32 episodes know them well."""
    rng = np.random.default_rng([problems, episodes])
    after = np.where(rng.random((RUNS, problems)) < rare, 0.98, 0.02)
    drawn = rng.binomial(episodes, after) - rng.binomial(episodes, 0.02, after.shape)
    ends = np.array([few_changes(row) for row in drawn / episodes])
    gain = 0.96 * rare
    assert ((ends[:, 0] <= gain) & (gain <= ends[:, 1])).mean() >= LEAST


@pytest.mark.parametrize("problems", [8, 12, 20])
def test_losses_of_rare_problems_make_no_gain(problems: int) -> None:
    """A tenth falls from .95 to .02, the others rise by as much in all: the true gain is 0."""
    rng = np.random.default_rng(problems)
    rare = rng.random((RUNS, problems)) < 0.1
    after = rng.binomial(32, np.where(rare, 0.02, 0.3 + 0.093 / 0.9))
    before = rng.binomial(32, np.where(rare, 0.95, 0.3))
    ends = np.array([few_changes(row) for row in (after - before) / 32])
    assert (ends[:, 0] > 0).mean() <= 0.04


@pytest.mark.parametrize("tasks", [4, 6, 12, 20])
@pytest.mark.parametrize("episodes", [1, 4])
def test_a_fall_of_errors_on_few_tasks_is_covered(tasks: int, episodes: int) -> None:
    """Errors in per cent of a range, of which a failed episode is charged a constant's."""
    rng = np.random.default_rng([tasks, episodes])
    shape = (RUNS, tasks, episodes)

    def errors(failing: float, constants: Floats, skill: Floats) -> Floats:
        noise = np.exp(rng.normal(0, 0.2, shape))
        found = constants[..., None] * skill[..., None] * noise
        return np.where(rng.random(shape) < failing, constants[..., None], found).mean(-1)

    constants, skill = rng.uniform(20, 40, shape[:2]), rng.uniform(0.3, 1.0, shape[:2])
    changes = errors(0.2, constants, 0.7 * skill) - errors(0.6, constants, skill)
    ends = np.array([few_changes(row, 40.0) for row in changes])
    # 30 and 0.65 on average; exp(normal(0, 0.2)) has the mean exp(0.02).
    worked = 30 * 0.65 * np.exp(0.02)
    fall = (0.2 * 30 + 0.8 * 0.7 * worked) - (0.6 * 30 + 0.4 * worked)
    assert ((ends[:, 0] <= fall) & (fall <= ends[:, 1])).mean() >= LEAST
    assert ends.min() < -1, "it is in the figure's own unit"


@pytest.mark.parametrize(("a", "b"), [(0.1, 0.9), (0.05, 2.0), (3.0, 3.0)])
@pytest.mark.parametrize("problems", [5, 20, 64])
def test_pass_at_k_is_covered(a: float, b: float, problems: int) -> None:
    rng = np.random.default_rng([problems, int(100 * a)])

    def passes(rates: Floats) -> Floats:
        wrong = 8 - rng.binomial(8, rates)
        return np.asarray(1 - special.comb(wrong, 4) / special.comb(8, 4))

    truth = float((1 - (1 - rng.beta(a, b, 200_000)) ** 4).mean())
    drawn = passes(rng.beta(a, b, (RUNS, problems)))
    ends = np.array([share_interval(row) for row in drawn])
    assert ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() >= LEAST


@pytest.mark.parametrize("problems", [5, 12, 20, 64])
@pytest.mark.parametrize("episodes", [1, 8, 32])
@pytest.mark.parametrize("rest", [0.02, 0.3])
def test_success_of_rare_problems_is_covered(problems: int, episodes: int, rest: float) -> None:
    """A tenth of the problems is nearly always solved."""
    rng = np.random.default_rng([problems, episodes])
    rates = np.where(rng.random((RUNS, problems)) < 0.1, 0.98, rest)
    ends = np.array([share_interval(row / episodes) for row in rng.binomial(episodes, rates)])
    truth = 0.1 * 0.98 + 0.9 * rest
    assert ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() >= LEAST
