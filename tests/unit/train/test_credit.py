from dataclasses import replace
from math import isfinite
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.ids import content_id, problem_id
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.credit import assign_credit, returns_to_go
from mappa_core.train.estimators import ESTIMATORS

GROUP = AlgorithmConfig()
PLAIN = AlgorithmConfig(estimator="reinforce++")


def action(
    index: int,
    score: float | None,
    *,
    problem: str = "p",
    length: int = 2,
    truncated: bool = False,
    episode: int | None = None,
    turn: int = 0,
    agent: str = "solver",
) -> ScoredAction:
    return ScoredAction(
        action_id=content_id("action", index),
        agent=agent,
        episode_id=content_id("episode", index if episode is None else episode),
        problem_id=problem_id(problem),
        rollout_index=index,
        turn_index=turn,
        policy_step=0,
        prompt_token_ids=(1, 2),
        token_ids=tuple(range(3, 3 + length)),
        logprobs=(-1.0,) * length,
        truncated=truncated,
        score=score,
    )


def advantages(actions: list[ScoredAction], algorithm: AlgorithmConfig) -> list[float | None]:
    return [entry.advantage for entry in assign_credit(actions, algorithm).entries]


def test_group_baseline_then_one_normalisation_by_hand() -> None:
    actions = [
        action(0, 10.0, problem="easy"),
        action(1, 8.0, problem="easy"),
        action(2, 5.0, problem="hard"),
        action(3, 0.0, problem="hard"),
    ]
    # minus the problem's mean: +-0.1 and +-0.25; deviation sqrt((2 * 0.01 + 2 * 0.0625) / 4)
    deviation = 0.03625**0.5
    expected = [0.1 / deviation, -0.1 / deviation, 0.25 / deviation, -0.25 / deviation]
    assert advantages(actions, GROUP) == pytest.approx(expected)


def test_without_a_baseline_the_batch_mean_is_the_baseline() -> None:
    assert advantages([action(0, 10.0), action(1, 0.0, problem="q")], PLAIN) == [1.0, -1.0]


def test_unscored_actions_are_accounted_for_and_change_nothing() -> None:
    scored = [action(0, 9.0), action(1, 3.0)]
    credit = assign_credit([scored[0], action(7, None), scored[1]], GROUP)
    without = assign_credit(scored, GROUP)
    assert credit.samples == without.samples
    assert [entry.left_out for entry in credit.entries] == [None, "unscored", None]
    assert credit.entries[1].advantage is None
    assert credit.entries[1].weight == 0.0
    assert (credit.entries[0], credit.entries[2]) == without.entries
    assert credit.metrics["left_out"] == 1.0


def test_an_action_without_another_episode_is_left_out() -> None:
    alone = [action(0, 9.0), action(1, 3.0, episode=0, turn=2), action(2, None)]
    for estimator, row in ESTIMATORS.items():
        credit = assign_credit(alone, AlgorithmConfig(estimator=estimator))
        reason = None if row.compares == "nothing" else "no_peer"
        assert [entry.left_out for entry in credit.entries] == [reason, reason, "unscored"]


def test_an_action_alone_in_its_problem_has_those_of_others_as_peers() -> None:
    actions = [action(0, 9.0), action(1, 3.0), action(2, 5.0, problem="q")]
    rloo = AlgorithmConfig(estimator="rloo")
    assert advantages(actions, rloo) == pytest.approx([0.6, -0.6, 0.5 - 0.6])


def turns(*scores: float | None, episode: int, problem: str = "p") -> list[ScoredAction]:
    """One agent's actions of an episode, every second turn, in no order."""
    return [
        action(10 * episode + i, score, episode=episode, turn=2 * i, problem=problem)
        for i, score in reversed(list(enumerate(scores)))
    ]


def test_peers_are_at_the_same_visit_counted_with_those_that_were_left_out() -> None:
    actions = [*turns(None, 4.0, episode=0), *turns(9.0, 6.0, 1.0, episode=1)]
    rloo = AlgorithmConfig(estimator="rloo")
    # The second visits are peers; the first has none at its visit, as the third.
    assert advantages(actions, rloo) == pytest.approx([4 / 10 - 0.6, None, -0.3, 0.2, 0.5])


def test_a_return_is_the_agents_later_scores_of_the_episode_and_unscored_ones_add_nothing() -> None:
    actions = [*turns(2.0, None, 8.0, episode=0), *turns(5.0, episode=1)]
    for discount, first in ((1.0, 1.0), (0.5, 0.4)):
        algorithm = AlgorithmConfig(estimator="reinforce", credit="return", discount=discount)
        assert advantages(actions, algorithm) == pytest.approx([0.8, None, first, 0.5])


def of_team(*scores: float | None, episode: int) -> list[ScoredAction]:
    """Actions of an episode in which every agent acts once, in order."""
    return [
        action(10 * episode + i, score, episode=episode, turn=i, agent=f"agent {i}")
        for i, score in enumerate(scores)
    ]


def of_agent(number: int, team: list[ScoredAction]) -> list[ScoredAction]:
    return [one for one in team if one.agent == f"agent {number}"]


def test_a_teams_credit_is_the_mean_of_an_actions_and_all_later_scores_that_count() -> None:
    team = [*of_team(2.0, 6.0, 10.0, episode=0), *of_team(4.0, None, 9.0, episode=1)]
    cut = replace(team[2], truncated=True)
    penalised = AlgorithmConfig(estimator="reinforce", credit="team", truncated="penalise")
    for algorithm, last in (
        (AlgorithmConfig(estimator="reinforce", credit="team"), 1.0),
        (penalised, 0.5),
    ):
        played = [*team[:2], cut, *team[3:]]
        given = [
            [entry.advantage for entry in assign_credit(own, algorithm, team=played).entries]
            for own in (of_agent(0, played), of_agent(1, played), of_agent(2, played))
        ]
        expected = [[(0.8 + last) / 3, 0.65], [(0.6 + last) / 2, None], [last, 0.9]]
        assert given == [pytest.approx(each) for each in expected]


def test_a_teams_credit_without_the_team_is_refused() -> None:
    own = of_agent(0, [*of_team(1.0, 2.0, episode=0), *of_team(3.0, 4.0, episode=1)])
    with pytest.raises(ValueError, match=r"credit=team needs the actions of all agents"):
        assign_credit(own, AlgorithmConfig(credit="team"))


def test_a_teams_credit_is_unbiased_over_all_pairs_of_episodes() -> None:
    """Two agents with two words each; what is expected is enumerated by hand."""
    first, second = (0.3, 0.7), ((0.6, 0.4), (0.1, 0.9))
    scores = {(a, b): (1.0 + 4 * a, 2.0 + 7 * (a != b)) for a in (0, 1) for b in (0, 1)}
    chance = {(a, b): first[a] * second[a][b] for a, b in scores}

    def slope(a: int) -> float:
        """Of log pi of the first agent's word, by the logit of word 1."""
        return a - first[1]

    exact = sum(p * slope(a) * sum(scores[a, b]) / 20 for (a, b), p in chance.items())
    rloo = AlgorithmConfig(estimator="rloo", credit="team")
    estimated = 0.0
    for one, p in chance.items():
        for other, q in chance.items():
            team = [*of_team(*scores[one], episode=0), *of_team(*scores[other], episode=1)]
            entries = assign_credit(of_agent(0, team), rloo, team=team).entries
            worth = [entry.advantage or 0.0 for entry in entries]
            estimated += p * q * (slope(one[0]) * worth[0] + slope(other[0]) * worth[1]) / 2
    assert estimated == pytest.approx(exact, abs=1e-12)


def test_a_discount_without_a_return_is_refused() -> None:
    with pytest.raises(ValueError, match=r"discount=0.9 is of a return: set algorithm.credit"):
        AlgorithmConfig(discount=0.9)


def test_truncated_actions_can_be_dropped_from_everything() -> None:
    actions = [action(0, 9.0), action(1, 3.0), action(2, 0.0, truncated=True)]
    dropping = GROUP.model_copy(update={"truncated": "mask"})
    assert advantages(actions, dropping) == pytest.approx([1.0, -1.0, None])
    assert assign_credit(actions, dropping).entries[2].left_out == "truncated"
    assert advantages(actions, GROUP)[2] is not None


def test_truncated_actions_can_be_penalised_in_baseline_normaliser_and_loss() -> None:
    actions = [action(0, 9.0), action(1, 3.0), action(2, 6.0, truncated=True)]
    penalising = GROUP.model_copy(update={"truncated": "penalise", "truncation_penalty": 0.6})
    # rewards .9, .3, 0: mean .4, variance (.25 + .01 + .16) / 3 = .14
    expected = [value / 0.14**0.5 for value in (0.5, -0.1, -0.4)]
    assert advantages(actions, penalising) == pytest.approx(expected)
    assert assign_credit(actions, penalising).metrics["truncated"] == 1.0


def test_shares_of_a_budget_are_shares() -> None:
    actions = [action(0, 9.0, length=1), action(1, 3.0, length=3)]
    budget = GROUP.model_copy(update={"loss_over": "budget", "loss_budget_tokens": 100})
    assert [e.weight for e in assign_credit(actions, budget).entries] == [0.25, 0.75]


def test_weights_over_samples_and_over_tokens() -> None:
    actions = [action(0, 9.0, length=1), action(1, 3.0, length=3)]
    over_samples = GROUP.model_copy(update={"loss_over": "samples"})
    assert [e.weight for e in assign_credit(actions, over_samples).entries] == [0.5, 0.5]
    assert [e.weight for e in assign_credit(actions, GROUP).entries] == [0.25, 0.75]


def test_normalising_over_tokens_lets_long_actions_set_the_mean() -> None:
    actions = [action(0, 10.0, length=1), action(1, 0.0, length=3), action(2, 5.0, length=1)]
    over_tokens = PLAIN.model_copy(update={"normalise_over": "tokens"})
    # The others' means (0 * 3 + .5) / 4, (1 + .5) / 2, (1 + 0 * 3) / 4
    size = ((0.875**2 + 3 * 0.75**2 + 0.25**2) / 5) ** 0.5
    expected = [0.875 / size, -0.75 / size, 0.25 / size]
    assert advantages(actions, over_tokens) == pytest.approx(expected)


def test_equal_scores_teach_nothing_and_say_so() -> None:
    credit = assign_credit([action(i, 7.3) for i in range(3)], GROUP)
    assert [sample.advantages for sample in credit.samples] == [(0.0, 0.0)] * 3
    assert credit.metrics["zero_variance_batch"] == 1.0
    assert credit.metrics["zero_variance_groups"] == 1.0


def test_a_group_of_equal_scores_has_exactly_zero_advantage() -> None:
    actions = [action(i, 7.3, problem="same") for i in range(3)]
    actions += [action(3, 1.0, problem="other"), action(4, 3.3, problem="other")]
    credit = assign_credit(actions, GROUP)
    assert all(not any(sample.advantages) for sample in credit.samples[:3])
    assert credit.metrics["zero_variance_groups"] == 1.0
    assert credit.metrics["zero_variance_batch"] == 0.0


def test_kl_in_the_reward_by_hand() -> None:
    algorithm = PLAIN.model_copy(update={"kl": "k1_reward", "kl_coefficient": 0.1})
    actions = [action(0, 10.0), action(1, 0.0)]
    # What the sampler stored, -1 everywhere, is in neither term.
    trainer, reference = [(-1.5, -2.0), (-3.0, -1.0)], [(-2.5, -2.0), (-3.0, -1.0)]
    credit = assign_credit(actions, algorithm, reference, trainer)
    # kl of the first action (1, 0): returns (1 - 0.1, 1) and (0, 0); the other's mean 0 and 0.95
    size = ((0.9**2 + 1.0 + 2 * 0.95**2) / 4) ** 0.5
    expected = [value / size for value in (0.9, 1.0, -0.95, -0.95)]
    actual = [value for sample in credit.samples for value in sample.advantages]
    assert actual == pytest.approx(expected)


def test_a_given_token_has_no_credit_and_no_kl() -> None:
    algorithm = PLAIN.model_copy(update={"kl": "k1_reward", "kl_coefficient": 0.1})
    actions = [action(0, 10.0), action(1, 0.0)]
    trainer, reference = [(-1.5, -2.0), (-3.0, -1.0)], [(-2.5, -2.0), (-3.0, -1.0)]
    plain = assign_credit(actions, algorithm, reference, trainer)
    # The first action's two tokens with one between them that was put there.
    forced = replace(action(0, 10.0, length=3), given=(1, 2))
    found = assign_credit(
        [forced, actions[1]],
        algorithm,
        [(-2.5, -30.0, -2.0), reference[1]],
        [(-1.5, -20.0, -2.0), trainer[1]],
    )
    first, last = plain.samples[0].advantages
    assert found.samples[0].advantages == (first, 0.0, last)
    assert found.samples[0].given == (1, 2)
    assert found.samples[1].advantages == plain.samples[1].advantages
    assert [entry.weight for entry in found.entries] == [entry.weight for entry in plain.entries]
    assert found.metrics == plain.metrics


@pytest.mark.parametrize("kl", ["k1_reward", "k2_loss", "k3_loss"])
def test_kl_without_a_fitting_reference_is_refused(
    kl: Literal["k1_reward", "k2_loss", "k3_loss"],
) -> None:
    algorithm = AlgorithmConfig(kl=kl)
    actions = [action(0, 1.0), action(1, 2.0)]
    for reference in (None, [(-1.0, -1.0)], [(-1.0, -1.0), (-1.0,)]):
        with pytest.raises(ValueError, match="base policy"):
            assign_credit(actions, algorithm, reference, [(-1.0, -1.0)] * 2)


def test_a_kl_in_the_reward_without_the_trainers_own_logprobs_is_refused() -> None:
    actions = [action(0, 1.0), action(1, 2.0)]
    given = [action.logprobs for action in actions]
    for trainer in (None, given[:1]):
        with pytest.raises(ValueError, match="trainer's"):
            assign_credit(actions, AlgorithmConfig(kl="k1_reward"), given, trainer)


def test_kl_as_a_loss_leaves_advantages_alone_and_hands_the_reference_on() -> None:
    actions = [action(0, 1.0), action(1, 2.0)]
    reference = [(-2.0, -1.0), (-1.0, -3.0)]
    credit = assign_credit(actions, AlgorithmConfig(kl="k2_loss"), reference)
    assert [sample.reference_logprobs for sample in credit.samples] == reference
    plain = assign_credit(actions, GROUP).samples
    assert [replace(s, reference_logprobs=None) for s in credit.samples] == list(plain)


def test_nothing_scored_is_no_samples_and_every_reason() -> None:
    for actions in ([], [action(0, None)]):
        credit = assign_credit(actions, GROUP)
        assert credit.samples == ()
        assert len(credit.entries) == len(actions)
        assert credit.metrics["zero_variance_batch"] == 1.0


ALGORITHMS = st.builds(
    AlgorithmConfig,
    estimator=st.sampled_from(list(ESTIMATORS)),
    credit=st.sampled_from(["action", "return"]),
    normalise_over=st.sampled_from(["samples", "tokens"]),
    loss_over=st.sampled_from(["samples", "tokens"]),
    truncated=st.sampled_from(["keep", "mask", "penalise"]),
)


@given(
    st.lists(
        st.tuples(
            st.none() | st.floats(0, 10),
            st.sampled_from("abc"),
            st.integers(1, 5),
            st.booleans(),
            st.integers(0, 7),
        ),
        max_size=16,
    ),
    ALGORITHMS,
)
def test_every_action_is_accounted_for_once(
    rows: list[tuple[float | None, str, int, bool, int]], algorithm: AlgorithmConfig
) -> None:
    actions = [
        action(i, score, problem=problem, length=length, truncated=truncated, episode=e, turn=i)
        for i, (score, problem, length, truncated, e) in enumerate(rows)
    ]
    credit = assign_credit(actions, algorithm)
    assert all(isfinite(value) for value in credit.metrics.values())
    assert all(isfinite(value) for sample in credit.samples for value in sample.advantages)
    assert [e.action_id for e in credit.entries] == [a.action_id for a in actions]
    counted = [e for e in credit.entries if e.left_out is None]
    assert [s.action_id for s in credit.samples] == [e.action_id for e in counted]
    assert all((e.advantage is None) == (e.left_out is not None) for e in credit.entries)
    assert sum(e.weight for e in credit.entries) == pytest.approx(1.0 if counted else 0.0)


def test_returns_to_go_by_hand() -> None:
    assert returns_to_go(torch.tensor([1.0, 2.0, 4.0])).tolist() == [7.0, 6.0, 4.0]


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=20))
def test_each_return_is_its_own_reward_and_the_next_return(rewards: list[int]) -> None:
    returns = returns_to_go(torch.tensor(rewards)).tolist()
    assert returns == [r + g for r, g in zip(rewards, [*returns[1:], 0], strict=True)]
