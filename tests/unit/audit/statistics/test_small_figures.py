"""Health, noise, agreement, policy and time machine, worked by hand."""

import numpy as np
import pytest

from mappa_core.audit.frame import Factor, Floats, Ints, LabelledScores, Ratings
from mappa_core.audit.records import CreditRule
from mappa_core.audit.statistics.agreement import (
    agreement,
    alpha,
    alpha_interval,
    beside_trainer,
    corrected_mean,
    weighted_kappa,
)
from mappa_core.audit.statistics.health import health, missing
from mappa_core.audit.statistics.noise import noise
from mappa_core.audit.statistics.trends import growth
from mappa_core.audit.statistics.updates import flips_beyond, other_updates, update_shares
from mappa_core.audit.watch.history import RunningSums
from tests.unit.audit.frames import make_frame

NAN = float("nan")
BATCH = CreditRule(by_problem=False)


def test_another_coach_beside_the_one_that_trained_by_hand() -> None:
    trained = np.array([2, 4, 6, 8, NAN, 5, 5, 5.0])
    other = np.array([3, 7, 5, 9, 1, 4, 6, NAN])
    agents = Factor.of(["a"] * 5 + ["b"] * 3)
    problems = np.array([1, 1, 2, 3, 3, 1, 2, 3])
    a, b, everything = beside_trainer(trained, other, agents, problems)
    assert (a.agent, a.actions, a.problems) == ("a", 4, 3)
    # Deviations -3, -1, 1, 3 and -3, 1, -1, 3: 16 over 20.
    assert a.correlation == pytest.approx(0.8)
    assert (a.trained, a.other, a.difference.value) == (5, 6, 1)
    # Its four differences 1, 3, -1 and 1 are of problems 1, 1, 2 and 3: sums of what is left of the
    # mean are 2, -2 and 0, each over the root of one less its problem's share.
    error = (4 / (1 - 1 / 2) + 4 / (1 - 1 / 4)) ** 0.5 / 4
    assert a.difference.standard_error == pytest.approx(error)
    # One score for all: nothing to correlate with.
    assert (b.agent, b.correlation, b.difference.value) == ("b", None, 0)
    assert (everything.agent, everything.actions) == ("all", 6)


def test_health_by_hand() -> None:
    found = health(make_frame([10, 10, 5, 0, NAN], unparsed=[False] * 4 + [True]))
    assert found is not None
    assert (found.actions, found.mean, found.mode) == (4, 6.25, 10)
    assert (found.at_mode, found.at_ceiling) == (0.5, 0.5)
    assert found.entropy_bits == pytest.approx(1.5)
    assert found.unparsed == pytest.approx(0.2)
    assert health(make_frame([NAN])) is None


def test_manskis_bounds_by_hand() -> None:
    frame = make_frame([8, NAN, 6, 6], task_type=["a", "a", "b", "b"])
    found = missing(frame, 0)
    assert found is not None
    # The missing score is 0 or 10: a mean of 4 or 9 against 6.
    assert (found.gap, found.lowest_gap, found.highest_gap) == (2, -2, 3)
    assert (found.share, found.possible_bias) == (0.5, 4.0)


def test_scores_that_rise_alone_diverge() -> None:
    frame = make_frame(
        [2, 4, 8, 10], problem=["1", "2", "1", "2"], iteration=[1, 1, 2, 2], success=[0, 1, 0, 1]
    )
    (found,) = RunningSums.of(frame).divergences()
    # Scores rise by 6 for each outcome; success is half as much as the score, less 3 a step.
    assert found.score.value == pytest.approx(6)
    assert found.estimate.value == pytest.approx(-3)


def test_noise_by_hand() -> None:
    found = noise(np.array([[1.0, 3.0], [7.0, 9.0], [4.0, NAN]]))
    assert found is not None
    # Within: variance 2; between: 2 * var(2, 8) = 36. ICC = 34 / 38.
    assert found.within_deviation == pytest.approx(2**0.5)
    assert found.reliability == pytest.approx(34 / 38)
    assert (found.low, found.high) == (None, None)
    assert (found.flips, found.actions) == (0.0, 2)
    # K * 34/38 / (1 + (K - 1) * 34/38) >= 0.9 from K = 9 * 4 / 34 on.
    assert found.repeats == 2
    assert noise(np.array([[1.0, 2.0]])) is None


def repeated(rng: np.random.Generator, problems: int, most: int) -> tuple[Floats, Ints]:
    """Three scores of 1 to so many actions a problem; four fifths of their variance is the action's
    worth, nine tenths of which is its problem's."""
    codes = np.repeat(np.arange(problems), rng.integers(1, most + 1, problems))
    worth = 6 + 1.33 * rng.normal(size=problems)[codes] + 0.44 * rng.normal(size=len(codes))
    return worth[:, None] + rng.normal(0, 0.7, (len(codes), 3)), codes


@pytest.mark.parametrize(("problems", "most"), [(6, 10), (12, 1), (12, 6), (40, 6)])
def test_the_interval_of_a_reliability_covers_that_of_further_problems(
    problems: int, most: int
) -> None:
    """That of actions as drawn covers 66 % of 6 problems of 1 to 10 actions."""
    rng, hits, truth = np.random.default_rng(problems), 0, 1.4**2 / (1.4**2 + 0.7**2)
    for _ in range(600):
        found = noise(*repeated(rng, problems, most))
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= truth <= found.high
    assert hits >= 0.92 * 600


def test_the_interval_of_a_reliability_without_noise_or_without_problems() -> None:
    table = np.array([[1.0, 1.0], [4.0, 4.0], [7.0, 7.0]])
    found = noise(table, np.array([1, 2, 3]))
    assert found is not None
    assert found.low is not None
    assert (0.9 < found.low < 1, found.high) == (True, 1.0)
    two = noise(table, np.array([1, 1, 2]))
    assert two is not None
    assert (two.reliability, two.low, two.high) == (1.0, None, None)


def test_repeats_that_change_the_order_flip() -> None:
    found = noise(np.array([[1.0, 3.0], [2.0, 2.0]]))
    assert found is not None
    assert (found.flips, found.repeats) == (1.0, None)


def test_agreement_by_hand() -> None:
    one, other = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 4.0, 4.0])
    # Disagreement 2 / 4; variances 1.25 and 1, means 2.5 and 3.
    assert weighted_kappa(one, other) == pytest.approx(1 - 0.5 / 2.5)
    # Interval alpha: 1 - 0.5 / mean squared difference of all 56 ordered pairs.
    values = np.r_[one, other]
    expected = ((values[:, None] - values) ** 2).sum() / 56
    assert alpha(np.stack([one, other])) == pytest.approx(1 - 0.5 / expected)
    found = agreement(np.r_[one, NAN], np.r_[other, 5.0], np.arange(5))
    assert found is not None
    assert (found.actions, found.difference) == (4, -0.5)
    assert found.low <= found.alpha <= found.high


def scored_twice(rng: np.random.Generator, problems: int, kind: str) -> tuple[Floats, Ints]:
    """Two scorers of 1 to 12 actions a problem, who see some problems alike and others not: all of
    them a bit, on a grid that scores heap on, or only a twelfth of them, but by five points."""
    codes = np.repeat(np.arange(problems), rng.integers(1, 13, problems))
    between, within = (0.95, 0.5) if kind == "apart" else (0.55, 0.84)
    worth = 6 + 1.6 * (
        between * rng.normal(size=problems)[codes] + within * rng.normal(size=len(codes))
    ) / np.hypot(between, within)
    if kind == "rare":
        apart = -5.0 * (rng.random(problems) < 1 / 12)[codes] + rng.normal(0, 0.3, len(codes))
    else:
        apart = rng.normal(0, 0.8, problems)[codes] + rng.normal(0, 0.7, len(codes))
    both = np.stack([worth, worth + apart]).round().clip(0, 10)
    if kind == "heaped":
        grid = np.array([0.0, 5.0, 7.0, 10.0])
        both = grid[np.abs(both[..., None] - grid).argmin(-1)]
    return both, codes


@pytest.mark.parametrize("kind", ["plain", "apart", "heaped", "rare"])
@pytest.mark.parametrize("problems", [5, 8, 12, 20, 30])
def test_the_interval_of_alpha_covers_that_of_further_problems(problems: int, kind: str) -> None:
    """A plain jackknife with a problem's degree of freedom each covers 45 to 94 % of these."""
    rng = np.random.default_rng(problems)
    truth = alpha(scored_twice(rng, 10_000, kind)[0])
    ends = np.array([alpha_interval(*scored_twice(rng, problems, kind)) for _ in range(400)])
    # The standard error of a coverage of 0.95 is 0.011; 30 problems hold a rare kind 2.5 times.
    least = 0.85 if (kind, problems) == ("rare", 30) else 0.92
    assert ((ends[:, 0] <= truth) & (truth <= ends[:, 1])).mean() >= least


def test_the_interval_of_alpha_without_a_difference_or_without_problems() -> None:
    same, codes = np.array([list(range(10))] * 2, dtype=np.float64), np.arange(10)
    assert alpha_interval(same, codes) == (pytest.approx(0.025**0.1), 1.0)
    assert alpha_interval(same, codes % 2) == (-1.0, 1.0)


def test_prediction_powered_mean_covers_and_is_narrower() -> None:
    rng, hits, narrower = np.random.default_rng(0), 0, 0
    for _ in range(200):
        truth = rng.normal(5, 1, 400)
        scores = truth + 1 + rng.normal(0, 0.5, 400)
        labels = np.where(np.arange(400) < 40, truth, NAN)
        found = corrected_mean(labelled(scores, labels))
        plain = corrected_mean(labelled(scores[:40], labels[:40]))
        assert found is not None
        assert plain is not None
        assert plain.trust == 0.0
        hits += found.low <= 5 <= found.high
        narrower += found.high - found.low < plain.high - plain.low
    assert hits >= 180
    assert narrower >= 190


def labelled(scores: Floats, labels: Floats, *, at_random: bool = True) -> LabelledScores:
    drawn = np.full(len(scores), at_random)
    problem = Factor.of([str(number) for number in range(len(scores))])
    one = Factor.of(["one"] * len(scores))
    return LabelledScores(
        scores=scores,
        labels=labels,
        problem=problem,
        task_type=one,
        agent=one,
        at_random=drawn,
        sampled=drawn,
    )


def test_labels_of_contested_actions_do_not_speak_for_all() -> None:
    scores = np.array([5.0, 6.0, 7.0, 8.0, 5.0])
    contested = labelled(scores, np.array([1.0, 1.0, 1.0, 1.0, NAN]), at_random=False)
    assert corrected_mean(contested) is None
    assert agreement(contested.scores, contested.labels, contested.problem.codes) is not None


@pytest.mark.parametrize("score", [(7.0, NAN, 5.0), (NAN, 7.0, 5.0)])
def test_an_absence_that_was_made_good_wipes_out_no_score(score: tuple[float, ...]) -> None:
    """Both have repeat 0 of one action, in the order of their ids, which means nothing."""
    ratings = Ratings(
        action=Factor.of(["a"] * 3),
        problem=Factor.of(["p"] * 3),
        task_type=Factor.of(["t"] * 3),
        agent=Factor.of(["g"] * 3),
        scorer=Factor.of(["s"] * 3),
        repeat=np.array([0, 0, 1]),
        trained=np.array([1, 1, 0]),
        score=np.array(score),
    )
    assert ratings.table(0).tolist() == [[7.0, 5.0]]
    assert ratings.means(0).tolist() == [6.0]


def test_a_bias_that_a_group_baseline_takes_away_has_no_share() -> None:
    frame = make_frame(
        [7, 5, 4, 2],
        task_type=["a", "a", "b", "b"],
        problem=["1", "1", "2", "2"],
        advantage=[1, -1, 1, -1],
    )
    bias = np.array([3.0, 3.0, 0.0, 0.0])
    (within,) = update_shares(frame, bias, CreditRule())
    assert (within.share, within.pull) == (0.0, 0.0)


def test_visits_of_a_problem_are_not_compared() -> None:
    """The second episode has another agent's turn in between: its second visit is turn 2."""
    frame = make_frame(
        [7, 5, 4, 2],
        problem=["1"] * 4,
        episode=[1, 2, 1, 2],
        turn=[0, 0, 1, 2],
        advantage=[1, -1, 1, -1],
    )
    (later,) = update_shares(frame, np.array([3.0, 3.0, 0.0, 0.0]), CreditRule())
    assert later.share == 0.0
    (one,) = update_shares(frame, np.array([3.0, 0.0, 0.0, 0.0]), CreditRule())
    assert one.share == pytest.approx(0.75)


@pytest.mark.parametrize("scale", [3.25**-0.5, 0.1], ids=["normalised", "as it is"])
def test_share_of_the_advantage_by_hand(scale: float) -> None:
    # Scores 7, 5, 4, 2: mean 4.5, variance 3.25; the bias makes 1.5 of each distance.
    scores = np.array([7.0, 5.0, 4.0, 2.0])
    frame = make_frame(scores.tolist(), advantage=(scale * (scores - 4.5)).tolist())
    (found,) = update_shares(frame, np.array([3.0, 3.0, 0.0, 0.0]), BATCH)
    assert found.share == pytest.approx(0.25 * 1.5 * (2.5 + 0.5 + 0.5 + 2.5) / 3.25)
    assert found.pull == pytest.approx(0.5 * 1.5 * scale)
    # Means 6 and 3 of the scores, all of which is the bias.
    assert (found.gap, found.gap_of_bias) == pytest.approx((3 * scale, 3 * scale))
    # The same bias, written as what the others were not given.
    (turned,) = update_shares(frame, np.array([0.0, 0.0, -3.0, -3.0]), BATCH)
    assert (turned.pull, turned.gap_of_bias) == pytest.approx((found.pull, found.gap_of_bias))


def test_the_favoured_type_grew() -> None:
    count = 40
    frame = make_frame(
        [5.0] * 4 * count,
        task_type=(["a"] * 2 + ["b"] * 2) * count,
        problem=[str(i % 80) for i in range(4 * count)],
        iteration=[1] * 2 * count + [2] * 2 * count,
        success=([0.0, 1.0, 0.0, 1.0] * (count // 2)) + ([1.0, 1.0, 0.0, 0.0] * (count // 2)),
    )
    found = growth(frame, 0)
    assert found is not None
    assert found.estimate.value == pytest.approx(1.0)


def test_another_coach_by_hand() -> None:
    frame = make_frame([8, 2, 6, 4], advantage=[1.0, -1.0, 0.5, -0.5])
    again, none = np.array([7.0, 3.0, 6.0, 4.0]), np.full(4, NAN)
    (same,) = other_updates(frame, np.array([4.0, 1.0, 3.0, 2.0]), again, BATCH)
    assert (same.flipped, same.cosine, same.differs) == (0, pytest.approx(1.0), False)
    (turned,) = other_updates(frame, np.array([2.0, 8.0, 6.0, NAN]), again, BATCH)
    assert (turned.actions, turned.flipped) == (3, 2)
    # Without a second scoring by its own coach it is not known what differs.
    (unknown,) = other_updates(frame, np.array([2.0, 8.0, 6.0, NAN]), none, BATCH)
    assert (unknown.flipped, unknown.floor, unknown.differs) == (2, None, None)


def test_the_same_coach_asked_again_is_no_other_coach() -> None:
    """Five updates of 40 problems of four actions: reliability 0.8, an eighth of the signs turn."""
    rng = np.random.default_rng(2)
    codes = np.repeat(np.arange(200), 4)
    worth = rng.normal(6, 1.4, len(codes))
    frame = make_frame(
        list(worth + rng.normal(0, 0.7, len(codes))),
        problem=[str(code) for code in codes],
        iteration=[int(code) // 40 + 1 for code in codes],
        advantage=[1.0] * len(codes),
    )
    again, third = (worth + rng.normal(0, 0.7, len(codes)) for _ in range(2))
    found = list(other_updates(frame, third, again, CreditRule()))
    assert sum(update.flipped for update in found) > 0.1 * len(codes)
    assert [update.differs for update in found] == [False] * 5
    excess = flips_beyond(frame, third, again, CreditRule())
    assert excess is not None
    low, high = excess.interval()
    assert low <= 0 <= high
    turned = flips_beyond(frame, 12 - third, again, CreditRule())
    assert turned is not None
    assert turned.interval()[0] > 0.4
    assert all(update.differs for update in other_updates(frame, 12 - third, again, CreditRule()))


def test_a_small_update_differs_where_that_is_more_than_chance() -> None:
    """100 updates of 8 problems of four actions, reliability 0.81: by its cosine alone one in seven
    would have differed under the very coach that it had."""
    rng = np.random.default_rng(3)
    codes = np.repeat(np.arange(800), 4)
    worth, otherwise = (rng.normal(6, 1.4, len(codes)) for _ in range(2))
    scores, again, third = (worth + rng.normal(0, 0.68, len(codes)) for _ in range(3))
    frame = make_frame(
        list(scores),
        problem=[str(code) for code in codes],
        iteration=[int(code) // 8 + 1 for code in codes],
        advantage=[1.0] * len(codes),
    )
    same = list(other_updates(frame, third, again, CreditRule()))
    assert (
        sum(each.floor is not None and each.cosine < 0.9 * each.floor.cosine for each in same) > 8
    )
    assert sum(each.differs is True for each in same) <= 5
    other = list(other_updates(frame, otherwise, again, CreditRule()))
    assert sum(each.differs is True for each in other) >= 80
