"""Each estimator on the same actions, worked by hand; and what they must never depend on."""

from collections.abc import Callable, Sequence
from typing import get_args

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import strategies as st

from mappa_core.train import estimators
from mappa_core.train.batches import token_weights
from mappa_core.train.estimators import (
    ESTIMATOR_VERSION,
    ESTIMATORS,
    EstimatorName,
    Rewards,
    baseline,
    scaled,
)

# Problem 0: 1.0, 0.4, 0.4 (mean 0.6); problem 1: 0.2, 0.8 (mean 0.5); an action an episode.
VALUES = [1.0, 0.4, 0.4, 0.2, 0.8]
PROBLEMS = [0, 0, 0, 1, 1]


def rewards(
    values: Sequence[float] = VALUES,
    problems: Sequence[int] = PROBLEMS,
    episodes: Sequence[int] | None = None,
    visits: Sequence[int] | None = None,
    penalties: Sequence[float] | None = None,
    lengths: Sequence[int] | None = None,
) -> Rewards:
    lengths = lengths or [1] * len(values)
    return Rewards(
        values=torch.tensor(values, dtype=torch.float64),
        problems=torch.tensor(problems),
        episodes=torch.tensor(episodes or range(len(values))),
        visits=torch.tensor(visits or [0] * len(values)),
        penalties=torch.tensor(penalties or [0.0] * sum(lengths), dtype=torch.float64),
        lengths=torch.tensor(lengths),
        weights=token_weights(lengths, "samples"),
    )


def values(estimator: Callable[[Rewards], torch.Tensor]) -> list[float]:
    return estimator(rewards()).tolist()


def test_reinforce_takes_the_reward_as_it_is() -> None:
    assert values(estimators.reinforce) == VALUES


def test_reinforce_plus_plus_is_the_published_one_where_an_episode_has_one_action() -> None:
    # mean 2.8 / 5 = 0.56; squares .1936 + .0256 + .0256 + .1296 + .0576 = .432; / 5 = .0864
    deviation = 0.0864**0.5
    expected = [0.44, -0.16, -0.16, -0.36, 0.24]
    assert values(ESTIMATORS["reinforce++"].advantages) == pytest.approx(
        [value / deviation for value in expected]
    )


def test_its_baseline_variant_takes_the_problems_others_and_the_batch_mean_square() -> None:
    # .6, -.3, -.3, -.6, .6: squares .36 + .09 + .09 + .36 + .36 = 1.26; / 5 = .252
    size = 0.252**0.5
    assert values(ESTIMATORS["reinforce++-baseline"].advantages) == pytest.approx(
        [value / size for value in (0.6, -0.3, -0.3, -0.6, 0.6)]
    )


def test_its_baseline_variant_is_the_published_one_where_groups_are_of_one_size() -> None:
    given = rewards([1.0, 0.4, 0.2, 0.9], [0, 0, 1, 1])
    # minus the problem's mean: +-.3, +-.35; mean 0, variance (.09 + .1225) / 2 = .10625
    assert ESTIMATORS["reinforce++-baseline"].advantages(given).tolist() == pytest.approx(
        [value / 0.10625**0.5 for value in (0.3, -0.3, -0.35, 0.35)]
    )


def test_rloo_takes_the_mean_of_the_others() -> None:
    # a: 1 - .4, .4 - .7, .4 - .7; b: .2 - .8, .8 - .2
    assert values(estimators.rloo) == pytest.approx([0.6, -0.3, -0.3, -0.6, 0.6])


def test_grpo_takes_the_problems_mean_and_sample_deviation() -> None:
    # Variances: of a (.16 + .04 + .04) over 2, of b (.09 + .09) over 1.
    a, b = 0.12**0.5, 0.18**0.5
    assert values(estimators.grpo) == pytest.approx(
        [0.4 / a, -0.2 / a, -0.2 / a, -0.3 / b, 0.3 / b]
    )


def test_dr_grpo_takes_the_problems_mean_alone() -> None:
    assert values(estimators.dr_grpo) == pytest.approx([0.4, -0.2, -0.2, -0.3, 0.3])


# Three episodes of problem 0, of 2, 2 and 1 actions; two of problem 1, of 3 and 1.
TURNS = rewards(
    values=[0.5, 0.1, 0.9, 0.3, 0.4, 0.2, 0.8, 1.0, 0.6],
    problems=[0, 0, 0, 0, 0, 1, 1, 1, 1],
    episodes=[0, 0, 1, 1, 2, 3, 3, 3, 4],
    visits=[0, 1, 0, 1, 0, 0, 1, 2, 0],
)


def test_a_peer_is_another_episodes_action_of_the_problem_at_the_visit_or_the_nearest_to_that() -> (
    None
):
    others = (0.5 + 0.1 + 0.9 + 0.3 + 0.4 + 0.6) / 6  # of episodes other than 3
    assert baseline(TURNS).tolist() == pytest.approx(
        [0.65, 0.3, 0.45, 0.1, 0.7, 0.6, 0.2, others, 0.2]
    )


def test_reinforce_plus_plus_leaves_its_own_episode_out_of_the_mean() -> None:
    # Sum 4.8 of 9; without each episode: 4.2 / 7, 3.6 / 7, 4.4 / 8, 2.8 / 6, 4.2 / 8.
    sums = [4.2 / 7, 4.2 / 7, 3.6 / 7, 3.6 / 7, 4.4 / 8, 2.8 / 6, 2.8 / 6, 2.8 / 6, 4.2 / 8]
    expected = [value - other for value, other in zip(TURNS.values.tolist(), sums, strict=True)]
    size = (sum(value * value for value in expected) / 9) ** 0.5
    assert ESTIMATORS["reinforce++"].advantages(TURNS).tolist() == pytest.approx(
        [value / size for value in expected]
    )


def test_turns_are_never_peers_in_grpo() -> None:
    # Problem 0's visits: (.5, .9, .4) and (.1, .3); problem 1's: (.2, .6), (.8), (1.).
    assert estimators.dr_grpo(TURNS).tolist() == pytest.approx(
        [-0.1, -0.1, 0.3, 0.1, -0.2, -0.2, 0, 0, 0.2]
    )
    half = 0.5**0.5
    assert estimators.grpo(TURNS).tolist() == pytest.approx(
        [-0.1 / 0.07**0.5, -half, 0.3 / 0.07**0.5, half, -0.2 / 0.07**0.5, -half, 0, 0, half]
    )


GOLDEN: dict[EstimatorName, list[float]] = {
    "reinforce++": [
        *(-0.368148, -0.337469, -1.533951, 1.189908, -0.650833),
        *(-0.454433, -0.810437, 1.030304, 1.643884, 0.235845),
    ],
    "reinforce++-baseline": [
        *(-0.436649, -0.410963, -0.513704, 1.155834, 0.513704),
        *(-0.770556, -1.027408, 1.541113, 1.369878, 1.027408),
    ],
    "reinforce": [0.48, 0.49, 0.1, 0.9, 0.3, 0.4, 0.2, 0.8, 1.0, 0.6],
    "rloo": [-0.17, -0.16, -0.2, 0.45, 0.2, -0.3, -0.4, 0.6, 0.533333, 0.4],
    "grpo": [
        *(-0.397964, -0.387964, -0.707107, 1.133893, 0.707107),
        *(-0.755929, -0.707107, 0.0, 0.0, 0.707107),
    ],
    "dr-grpo": [-0.12, -0.11, -0.1, 0.3, 0.1, -0.2, -0.2, 0.0, 0.0, 0.2],
}
"""Of the turns above, the first action two tokens long and with a KL."""


@pytest.mark.parametrize("name", get_args(EstimatorName))
def test_this_version_gives_these_advantages(name: EstimatorName) -> None:
    """Where a number here changes, the version must: runs say by it what their advantages are."""
    assert ESTIMATOR_VERSION == "2"
    given = rewards(
        TURNS.values.tolist(),
        TURNS.problems.tolist(),
        TURNS.episodes.tolist(),
        TURNS.visits.tolist(),
        penalties=[0.02, 0.01, *[0.0] * 8],
        lengths=[2, *[1] * 8],
    )
    assert ESTIMATORS[name].advantages(given).tolist() == pytest.approx(GOLDEN[name], abs=1e-6)


@pytest.mark.parametrize("name", ["reinforce++", "reinforce++-baseline", "reinforce", "rloo"])
def test_what_an_action_caused_does_not_move_its_advantage(name: EstimatorName) -> None:
    """A later score of its own episode; the scale, which all actions share, is taken out."""

    def ratio(later: float) -> float:
        changed = TURNS.values.clone()
        changed[7] = later
        given = rewards(
            changed.tolist(),
            TURNS.problems.tolist(),
            TURNS.episodes.tolist(),
            TURNS.visits.tolist(),
        )
        advantages = ESTIMATORS[name].advantages(given)
        return float(advantages[5] / advantages[6])

    assert ratio(0.0) == pytest.approx(ratio(1.0), abs=1e-12)


def test_the_kl_to_come_is_taken_off_each_token() -> None:
    given = rewards(penalties=[0.3, 0.1, 0.0, 0.0, 0.0, 0.0], lengths=[2, 1, 1, 1, 1])
    assert estimators.reinforce(given).tolist() == pytest.approx([0.7, 0.9, 0.4, 0.4, 0.2, 0.8])
    assert estimators.dr_grpo(given).tolist()[:2] == pytest.approx([0.1, 0.3])


def test_the_kl_is_in_the_mean_of_reinforce_plus_plus() -> None:
    given = rewards([1.0, 0.0], [0, 1], penalties=[0.1, 0.0, 0.0], lengths=[2, 1])
    # Returns .9, 1 and 0; without each episode the mean is 0, 0 and .95.
    size = ((0.9**2 + 1.0**2) / 4 + 0.95**2 / 2) ** 0.5
    assert ESTIMATORS["reinforce++"].advantages(given).tolist() == pytest.approx(
        [0.9 / size, 1.0 / size, -0.95 / size]
    )


def test_the_table_has_every_name_that_a_configuration_may_say() -> None:
    assert tuple(ESTIMATORS) == get_args(EstimatorName)


@pytest.mark.parametrize(
    "name", [name for name, one in ESTIMATORS.items() if one.compares != "nothing"]
)
def test_equal_rewards_of_a_problem_are_exactly_no_signal(name: EstimatorName) -> None:
    # 0.1 has no exact mean: what is left of it is rounding, and must not become +-1.
    assert not ESTIMATORS[name].advantages(rewards([0.1] * 3, [0] * 3)).any()


SOME = st.lists(st.floats(-10, 10), min_size=2, max_size=30)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def uniform(count: int) -> torch.Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def test_scaled_by_hand() -> None:
    # mean square (9 + 1 + 1 + 9) / 4 = 5
    result = scaled(f64(-3.0, -1.0, 1.0, 3.0), uniform(4))
    torch.testing.assert_close(result, f64(-3.0, -1.0, 1.0, 3.0) / 5**0.5)


def test_scaled_weighs_what_it_is_told_to() -> None:
    # 0.75 * 0 + 0.25 * 16 = 4
    torch.testing.assert_close(scaled(f64(0.0, 4.0), f64(0.75, 0.25)), f64(0.0, 2.0))


def test_the_residue_of_rounding_is_exactly_zero() -> None:
    assert scaled(f64(-1.0, 1e-17, 1.0), uniform(3))[1].item() == 0.0
    assert scaled(f64(1e-17, -1e-17), uniform(2)).tolist() == [0.0, 0.0]


@drawn(SOME, st.floats(-5, 5), st.floats(0.1, 10))
def test_shift_and_positive_scale_of_all_scores_change_nothing(
    values: list[float], shift: float, scale: float
) -> None:
    plain = f64(*values)
    if plain.std(correction=0) < 1e-3:
        return
    for estimator in (
        ESTIMATORS["reinforce++"].advantages,
        ESTIMATORS["reinforce++-baseline"].advantages,
    ):
        problems = [0] * len(values)
        torch.testing.assert_close(
            estimator(rewards(values, problems)),
            estimator(rewards((plain * scale + shift).tolist(), problems)),
            atol=1e-6,
            rtol=1e-6,
        )
