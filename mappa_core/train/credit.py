"""Turns scored actions into training samples.

    scores / 10 ─▶ less a truncation's penalty ─▶ with the agent's later ones, where credit=return
        ─▶ the estimator, with the KL to come ─▶ advantages

For one agent with policy pi, its actions a_j of an episode in states s_j, and their rewards r_j,
what is estimated is one of

    action    E[ sum_j grad log pi(a_j | s_j) r_j ]
    return    E[ sum_j grad log pi(a_j | s_j) sum_{l >= j} discount^(l - j) r_l ]
    team      E[ sum_j grad log pi(a_j | s_j) mean over a_j and all that come later, of any agent ]

The first is the gradient of the agent's own scores with the states held fixed in which it is asked
(a contextual bandit's): what an action causes later is no part of it. The second, undiscounted, is
the gradient of E[sum_j r_j]; with a discount below 1 it is what the field computes, whose states
are not discounted (arXiv 1906.07073). The third holds an action to account for what the team made
of it: a coach that cannot tell a good plan from a bad one can often tell what came of it.

An action that is left out is left out of everything: baseline, normaliser and loss; to a return it
adds nothing. Every action given comes back as an entry that says what it was worth, or why it did
not count. Where the reason has nothing to do with what was written (a coach that could not be
reached), the estimate stays unbiased for the others; where it has (`truncated=mask`, a coach that
refuses), leaving an action out is to value it at its baseline.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import torch
from torch import Tensor

from mappa_core.core.records.episodes import Given, chosen
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample, UpdateEntry
from mappa_core.train.batches import token_weights
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.estimators import ESTIMATORS, Rewards

Logprobs = Sequence[tuple[float, ...]]

SCORE_SCALE = 10.0
"""Coach scores lie in [0, 10]; rewards in [0, 1], so one KL coefficient fits every team."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What a batch of scored actions comes to."""

    samples: tuple[TrainingSample, ...]
    """The actions that count, in the order given."""
    entries: tuple[UpdateEntry, ...]
    """One for every action given, in the order given."""
    metrics: Mapping[str, float]
    """How the batch looks: score_mean, return_std, zero_variance_groups, left_out, ..."""


def assign_credit(
    actions: Sequence[ScoredAction],
    algorithm: AlgorithmConfig,
    reference_logprobs: Logprobs | None = None,
    trainer_logprobs: Logprobs | None = None,
    team: Sequence[ScoredAction] = (),
) -> Credit:
    """Give each of one agent's actions of one iteration its advantages.

    An action gets its own coach score or, where `credit=return`, what the agent's later ones of the
    episode got, too; where `credit=team`, the mean of its score and all later ones. Where a batch
    has a single episode there is nothing to compare with, and its actions are left out (`no_peer`).

    Args:
        actions: N, of T tokens each.
        algorithm: What credit is, the KL included.
        reference_logprobs: (N, T) under the base policy; needed where `kl` is on.
        trainer_logprobs: (N, T) under the weights before the update, by the learner as the
            reference is; needed for `kl=k1_reward`, whose difference an engine's rounding or
            staleness would be part of.
        team: The iteration's actions of all agents, these among them; needed for `credit=team`.

    Raises:
        ValueError: Log-probs or a team that are needed are missing or do not fit the actions.
    """
    estimator = ESTIMATORS[algorithm.estimator]
    reasons = _left_out(actions, algorithm, compares=estimator.compares != "nothing")
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    pulled, in_reward = algorithm.kl != "none", algorithm.kl == "k1_reward"
    references = _rows(actions, "base policy", reference_logprobs) if pulled else _none(actions)
    trainer = _rows(actions, "trainer", trainer_logprobs) if in_reward else _none(actions)
    kls = [_k1(actions[i], trainer[i], references[i]) for i in kept]
    rewards = _rewards(actions, kept, algorithm, kls, team)
    advantages = estimator.advantages(rewards) if kept else rewards.penalties

    lengths = rewards.lengths.tolist()
    parts = advantages.split(lengths) if kept else ()
    entries = [_left_out_entry(*each) for each in zip(actions, reasons, strict=True)]
    for i, part, share in zip(kept, parts, _shares(lengths, algorithm), strict=True):
        entries[i] = replace(entries[i], advantage=float(part.mean()), weight=share)
    return Credit(
        samples=tuple(
            _sample(actions[i], part, references[i], trainer[i])
            for i, part in zip(kept, parts, strict=True)
        ),
        entries=tuple(entries),
        metrics=_metrics(actions, [actions[i] for i in kept], rewards, advantages),
    )


def _left_out(
    actions: Sequence[ScoredAction], algorithm: AlgorithmConfig, *, compares: bool
) -> list[str | None]:
    """Why each action does not count; None where it does."""
    reasons = [_own_reason(action, algorithm) for action in actions]
    pairs = zip(actions, reasons, strict=True)
    episodes = {action.episode_id for action, reason in pairs if reason is None}
    alone = compares and len(episodes) == 1
    return ["no_peer" if alone and reason is None else reason for reason in reasons]


def _left_out_entry(action: ScoredAction, reason: str | None) -> UpdateEntry:
    return UpdateEntry(
        action_id=action.action_id,
        score_id=action.score_id,
        advantage=None,
        weight=0.0,
        left_out=reason,
    )


def _own_reason(action: ScoredAction, algorithm: AlgorithmConfig) -> str | None:
    if action.score is None:
        return "unscored"
    if not action.token_ids:
        return "empty"
    return "truncated" if algorithm.truncated == "mask" and action.truncated else None


def _rows(actions: Sequence[ScoredAction], whose: str, given: Logprobs | None) -> Logprobs:
    lengths = [len(action.token_ids) for action in actions]
    if given is None or [len(row) for row in given] != lengths:
        raise ValueError(f"a KL needs the {whose}'s log-prob of every token")
    return given


def _none(actions: Sequence[ScoredAction]) -> Sequence[None]:
    return [None] * len(actions)


def _k1(
    action: ScoredAction, trainer: tuple[float, ...] | None, reference: tuple[float, ...] | None
) -> Tensor:
    """Per token log pi - log pi_ref: unbiased for the KL, may be negative; (T,), 0 where not asked.

    k1 of J. Schulman, "Approximating KL divergence", 2020.
    """
    if trainer is None or reference is None:
        return torch.zeros(_length(action), dtype=torch.float64)
    return _f64(chosen(trainer, action.given)) - _f64(chosen(reference, action.given))


def _length(action: ScoredAction) -> int:
    """T: tokens that were sampled."""
    return len(chosen(action.token_ids, action.given))


def _rewards(
    actions: Sequence[ScoredAction],
    kept: Sequence[int],
    algorithm: AlgorithmConfig,
    kls: Sequence[Tensor],
    team: Sequence[ScoredAction],
) -> Rewards:
    """What the estimators read of the actions that count."""
    counted = [actions[i] for i in kept]
    values = _values(actions, kept, algorithm, team)
    visits = _visits(actions)
    lengths = [_length(action) for action in counted]
    penalties = [algorithm.kl_coefficient * returns_to_go(kl) for kl in kls]
    return Rewards(
        values=_f64([values[i] for i in kept]),
        problems=_numbers([action.problem_id for action in counted]),
        episodes=_numbers([action.episode_id for action in counted]),
        visits=torch.tensor([visits[i] for i in kept], dtype=torch.int64),
        penalties=torch.cat([_f64(()), *penalties]),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        weights=token_weights(lengths, algorithm.normalise_over),
    )


def _numbers(keys: Sequence[Hashable]) -> Tensor:
    """Number keys from 0 in their order; (N,) int64."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return torch.tensor([numbers[key] for key in keys], dtype=torch.int64)


def _visits(actions: Sequence[ScoredAction]) -> list[int]:
    """How many actions the agent had before in the same episode, left out or not."""
    before = Counter[UUID]()
    visits = [0] * len(actions)
    for i in _in_order(actions):
        visits[i] = before[actions[i].episode_id]
        before[actions[i].episode_id] += 1
    return visits


def _values(
    actions: Sequence[ScoredAction],
    kept: Sequence[int],
    algorithm: AlgorithmConfig,
    team: Sequence[ScoredAction],
) -> list[float]:
    """R of each action: its reward, its return, or its team's; what does not count adds nothing."""
    if algorithm.credit == "team":
        return _team_values(actions, kept, algorithm, team)
    values = [0.0] * len(actions)
    for i in kept:
        values[i] = _reward(actions[i], algorithm)
    if algorithm.credit == "action":
        return values
    to_come = defaultdict[UUID, float](float)
    for i in reversed(_in_order(actions)):
        episode = actions[i].episode_id
        values[i] += algorithm.discount * to_come[episode]
        to_come[episode] = values[i]
    return values


def _team_values(
    actions: Sequence[ScoredAction],
    kept: Sequence[int],
    algorithm: AlgorithmConfig,
    team: Sequence[ScoredAction],
) -> list[float]:
    """Mean reward of each action and all later ones of its episode that count."""
    rewards = defaultdict[UUID, list[tuple[int, float]]](list)
    for one in team:
        if _own_reason(one, algorithm) is None:
            rewards[one.episode_id].append((one.turn_index, _reward(one, algorithm)))
    values = [0.0] * len(actions)
    for i in kept:
        turn = actions[i].turn_index
        later = [reward for index, reward in rewards[actions[i].episode_id] if index >= turn]
        if not later:
            raise ValueError("credit=team needs the actions of all agents, these among them")
        values[i] = sum(later) / len(later)
    return values


def _in_order(actions: Sequence[ScoredAction]) -> list[int]:
    return sorted(range(len(actions)), key=lambda i: actions[i].turn_index)


def _reward(action: ScoredAction, algorithm: AlgorithmConfig) -> float:
    """R in [0, 1], or less where a truncated action is penalised (cf. DAPO, 2503.14476, eq. 13)."""
    reward = (action.score or 0.0) / SCORE_SCALE
    penalised = algorithm.truncated == "penalise" and action.truncated
    return reward - algorithm.truncation_penalty if penalised else reward


def returns_to_go(rewards: Tensor) -> Tensor:
    """Sum this token's and all later rewards: G_t = sum_{s >= t} r_s, undiscounted; (T,)."""
    return rewards.flip(0).cumsum(0).flip(0)


def _f64(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _shares(lengths: Sequence[int], algorithm: AlgorithmConfig) -> list[float]:
    """Each action's share of the loss; they sum to 1."""
    if not lengths:
        return []
    weights = token_weights(lengths, algorithm.loss_over, algorithm.loss_budget_tokens)
    shares = torch.stack([part.sum() for part in weights.split(list(lengths))])
    return (shares / shares.sum()).tolist()


def _sample(
    action: ScoredAction,
    advantages: Tensor,
    reference: tuple[float, ...] | None,
    trainer: tuple[float, ...] | None,
) -> TrainingSample:
    return TrainingSample(
        action_id=action.action_id,
        prompt_token_ids=action.prompt_token_ids,
        token_ids=action.token_ids,
        old_logprobs=action.logprobs,
        advantages=_of_all_tokens(advantages.tolist(), action.given),
        reference_logprobs=reference,
        trainer_logprobs=trainer,
        temperature=action.temperature,
        given=action.given,
    )


def _of_all_tokens(advantages: Sequence[float], given: Given) -> tuple[float, ...]:
    """Advantages of sampled tokens with a 0 for each that was given."""
    if given is None:
        return tuple(advantages)
    first, end = given
    return (*advantages[:first], *(0.0,) * (end - first), *advantages[first:])


def _metrics(
    actions: Sequence[ScoredAction],
    counted: Sequence[ScoredAction],
    rewards: Rewards,
    advantages: Tensor,
) -> dict[str, float]:
    """The batch in numbers, all finite; `zero_variance_*` say where there was nothing to learn."""
    values = rewards.values.tolist()
    groups = rewards.groups().tolist() if counted else []
    distinct = defaultdict[int, set[float]](set)
    for group, value in zip(groups, values, strict=True):
        distinct[group].add(round(value, 9))
    returns, weights = rewards.per_token(rewards.values), rewards.weights
    mean = (weights * returns).sum()
    deviation = (weights * (returns - mean).square()).sum().sqrt()
    same = sum(len(each) == 1 for each in distinct.values())
    return {
        "actions": float(len(actions)),
        "left_out": float(len(actions) - len(counted)),
        "truncated": float(sum(action.truncated for action in actions)),
        "score_mean": sum(a.score or 0.0 for a in counted) / max(len(counted), 1),
        "return_mean": float(mean),
        "return_std": float(deviation),
        "zero_variance_batch": float(not advantages.any()),
        "zero_variance_groups": float(same),
        "zero_variance_share": same / max(len(distinct), 1),
    }
