"""Estimators against exact gradients, in short; `mappa bench estimators` is the long form."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mappa_core.core.ids import content_id
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.batches import token_weights
from mappa_core.train.certificate import Size, Verdict, bias, certify, estimates, split
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.credit import assign_credit
from mappa_core.train.estimators import ESTIMATORS, Estimator, EstimatorName, Rewards, scaled
from mappa_core.train.toy_teams import (
    CAUSES,
    LEARNER,
    LEFT_OUT,
    PENALTY,
    TEAMS,
    Moment,
    Played,
    Team,
    episodes,
    exact_gradient,
    play,
)

UNBIASED = [(name, ESTIMATORS[name]) for name in ("reinforce++", "reinforce++-baseline")]
CHANCE = 1e-5
"""Eighty figures: one of them is below this by chance in one seed of a thousand."""
BY_NAME = {team.name: team for team in (*TEAMS, *LEFT_OUT)}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors of some hundred numbers: a second thread only waits, and takes a core for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def sampled(team: Team, batches: int = 1, size: Size = (6, 3)) -> Played:
    return play(team, batches, *size, torch.Generator().manual_seed(7))


@pytest.mark.parametrize("team", [team for team in TEAMS if team.all_counted() == team])
def test_the_exact_gradient_is_that_of_the_listed_expectation(team: Team) -> None:
    """Automatic differentiation of E[sum of rewards], and of the bandit's surrogate."""
    logits = team.logits().requires_grad_()
    total, surrogate, likelihood = torch.zeros(3, dtype=torch.float64)
    for likely, path in episodes(team, logits):
        likelihood = likelihood + likely
        for moment, action in path:
            if team.moments[moment].agent == LEARNER:
                reward = team.moments[moment].rewards[action]
                sign = 1 if action else -1
                total = total + likely * reward
                surrogate = surrogate + likely.detach() * reward * (
                    torch.nn.functional.logsigmoid(sign * logits[moment])
                )
    assert likelihood.item() == pytest.approx(1)
    for expectation, discount in ((total, 1.0), (surrogate, None)):
        (expected,) = torch.autograd.grad(expectation, logits, retain_graph=True)
        own = torch.where(team.learns(), expected, 0.0)
        torch.testing.assert_close(exact_gradient(team, discount), own)


def scored_actions(team: Team, played: Played) -> list[ScoredAction]:
    """One sampled batch as the learner reads it from the store."""
    per_problem = played.per_problem
    return [
        ScoredAction(
            action_id=content_id("action", row, visit),
            agent="solver",
            episode_id=content_id("episode", row),
            problem_id=content_id("problem", row // per_problem),
            rollout_index=row % per_problem,
            turn_index=2 * visit,
            policy_step=0,
            prompt_token_ids=(1,),
            token_ids=(2,),
            logprobs=(-1.0,),
            truncated=team.moments[moment].truncated[action],
            score=10 * team.moments[moment].rewards[action] if counted or masked else None,
        )
        for row, (moments, actions, counts) in enumerate(
            zip(
                played.moments.tolist(),
                played.actions.tolist(),
                played.counted.tolist(),
                strict=True,
            )
        )
        for visit, (moment, action, counted) in enumerate(
            zip(moments, actions, counts, strict=True)
        )
        if moment >= 0
        for masked in [team.truncated == "mask" and team.moments[moment].truncated[action]]
    ]


@pytest.mark.parametrize("name", list(ESTIMATORS))
@pytest.mark.parametrize("team", ["executor", "debate", "unscored", "penalised", "masked"])
def test_what_is_measured_is_what_a_learner_is_given(name: EstimatorName, team: str) -> None:
    played = sampled(BY_NAME[team])
    for credit, discount in (("action", None), ("return", 0.9)):
        algorithm = AlgorithmConfig(
            estimator=name,
            credit="return" if credit == "return" else "action",
            discount=discount or 1.0,
            truncated=BY_NAME[team].truncated,
            truncation_penalty=PENALTY,
        )
        given = assign_credit(scored_actions(BY_NAME[team], played), algorithm)
        advantages = [value for sample in given.samples for value in sample.advantages]
        (batch,) = split(played, discount)
        assert advantages == pytest.approx(ESTIMATORS[name].advantages(batch).tolist())


def chances(verdicts: list[Verdict]) -> list[float]:
    return [chance for v in verdicts for chance in (v.unscaled.p_along, v.unscaled.p_across)]


@pytest.mark.parametrize("size", [(12, 4), (32, 2)])
@pytest.mark.parametrize("team", TEAMS, ids=lambda team: team.name)
def test_what_compares_with_other_episodes_has_no_bias(team: Team, size: Size) -> None:
    found = list(certify(team, size, UNBIASED, discounts=(None, 0.5), total=8_000))
    assert min(chances(found)) > CHANCE
    assert max(v.unscaled.along_error for v in found) < 0.15, "too few to see anything"


def problem_mean(given: Rewards) -> Tensor:
    """The baseline until version 2: all of the problem's actions, itself and later turns too."""
    sums = given.values.new_zeros(len(given.values)).index_add(0, given.problems, given.values)
    counts = given.problems.bincount(minlength=len(given.values))
    return given.values - (sums / counts)[given.problems]


def summed_turns(given: Rewards) -> Tensor:
    """Each turn compared, then summed (verl's issue 7244): a return of compared parts."""
    parts = ESTIMATORS["rloo"].centred(given)
    own = given.episodes[:, None] == given.episodes[None, :]
    later = given.visits[:, None] <= given.visits[None, :]
    return (own & later).double() @ parts


@pytest.mark.parametrize("size", [(12, 4), (32, 2)])
def test_the_former_baseline_is_found_biased(size: Size) -> None:
    """The certificate can fail; and a first action is charged for what it brought about."""
    planted = [("planted", Estimator(centred=problem_mean, summary="", scales=True))]
    (found,) = certify(CAUSES, size, planted, discounts=(None,), total=8_000)
    assert found.unscaled.p_across < 1e-9
    difference, error = found.first
    assert difference < -8 * error
    for verdict in certify(CAUSES, size, UNBIASED, discounts=(None,), total=8_000):
        assert abs(verdict.first[0]) < 4 * verdict.first[1]


def test_comparing_turns_and_then_summing_is_found_biased() -> None:
    team = BY_NAME["executor"]
    played, exact = sampled(team, 400, (12, 4)), exact_gradient(team, 1.0)
    planted = Estimator(centred=summed_turns, summary="")
    found = bias(estimates(team, played, planted, None).unscaled, exact, known_scale=True)
    assert min(found.p_along, found.p_across) < 1e-9


def test_an_action_that_is_left_out_for_what_it_says_counts_as_worth_its_baseline() -> None:
    choice = Moment(logit=0.4, rewards=(0.2, 0.9), scored=(1.0, 0.4))
    team = Team(name="refused", moments=(choice, replace(choice, agent="x")), starts=(0,))
    one = team.logits()[0].sigmoid().item()
    baseline = ((1 - one) * 0.2 + one * 0.4 * 0.9) / ((1 - one) + one * 0.4)
    worth = 0.4 * 0.9 + 0.6 * baseline - 0.2
    found = estimates(team, sampled(team, 2000), ESTIMATORS["rloo"], None).unscaled[:, 0]
    error = found.std().item() / len(found) ** 0.5
    assert abs(found.mean().item() - one * (1 - one) * worth) < 4 * error
    assert error < 0.05 * one * (1 - one) * worth


@pytest.mark.parametrize(("over", "parallel"), [("samples", False), ("tokens", True)])
def test_a_mean_over_each_actions_own_tokens_is_a_bias_of_its_own(
    over: str, *, parallel: bool
) -> None:
    """Dr. GRPO, section 3: stopping at once (0.3) or a second token of two (0.9, 0.2)."""
    logits = torch.tensor([0.2, -0.4], dtype=torch.float64, requires_grad=True)
    further, second = logits.sigmoid()
    outcomes = [(1 - further, 1, 0.3), (further * (1 - second), 2, 0.9), (further * second, 2, 0.2)]
    by_length = token_weights([1, 2], "samples" if over == "samples" else "tokens")[[0, 1]]
    expected = torch.stack([likely * reward for likely, _, reward in outcomes]).sum()
    weighed = torch.stack(
        [
            likely.detach() * likely.log() * reward * by_length[length - 1]
            for likely, length, reward in outcomes
        ]
    ).sum()
    exact, taken = (
        torch.autograd.grad(of, logits, retain_graph=True)[0] for of in (expected, weighed)
    )
    cosine = torch.nn.functional.cosine_similarity(exact, taken, dim=0).item()
    assert (cosine > 1 - 1e-9) is parallel


def test_scaling_keeps_the_direction() -> None:
    values = torch.tensor([1.0, -2.0], dtype=torch.float64)
    result = scaled(values, torch.full((2,), 0.5, dtype=torch.float64))
    torch.testing.assert_close(result / values, torch.full_like(values, 2.5**-0.5))
