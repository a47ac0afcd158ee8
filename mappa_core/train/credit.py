"""From scored actions to training samples.

    scores / 10 ─▶ less a truncation's penalty ─▶ the estimator, with the KL to come ─▶ advantages

An action that is left out is left out of everything: baseline, normaliser and loss. Every action
given comes back as an entry that says what it was worth, or why it did not count.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import torch
from torch import Tensor

from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import TrainingSample, UpdateEntry
from mappa_core.train.config import ALONE, AlgorithmConfig
from mappa_core.train.estimators import ESTIMATORS, Rewards
from mappa_core.train.objective import token_weights
from mappa_core.train.returns import SCORE_SCALE, k1, returns_to_go

Logprobs = Sequence[tuple[float, ...]]


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
) -> Credit:
    """Advantages for one agent's actions of one iteration.

    Where a problem's actions are compared, one that has no other has nothing to be compared with
    and is left out (`no_peer`); as its own mean it would only shrink the deviation.

    Args:
        actions: N actions, scored or not.
        algorithm: Estimator, normaliser, KL and what to leave out.
        reference_logprobs: N tuples of length T under the base policy; needed where `kl` is on.

    Raises:
        ValueError: `kl` is on and the reference is missing or does not fit the actions.
    """
    reasons = _left_out(actions, algorithm)
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    references = _references(actions, algorithm, reference_logprobs)
    counted = [actions[i] for i in kept]
    rewards = _rewards(counted, algorithm, [references[i] for i in kept])
    advantages = ESTIMATORS[algorithm.estimator](rewards)

    lengths = rewards.lengths.tolist()
    per_action = dict(zip(kept, advantages.split(lengths), strict=True)) if kept else {}
    weights = dict(zip(kept, _shares(lengths, algorithm), strict=True))
    return Credit(
        samples=tuple(_sample(actions[i], per_action[i], references[i]) for i in kept),
        entries=tuple(
            UpdateEntry(
                action_id=action.action_id,
                score_id=action.score_id,
                advantage=float(per_action[i].mean()) if i in per_action else None,
                weight=weights.get(i, 0.0),
                left_out=reasons[i],
            )
            for i, action in enumerate(actions)
        ),
        metrics=_metrics(actions, counted, rewards, advantages),
    )


def _left_out(actions: Sequence[ScoredAction], algorithm: AlgorithmConfig) -> list[str | None]:
    """Why each action does not count; None where it does."""
    reasons = [_own_reason(action, algorithm) for action in actions]
    if algorithm.estimator in ALONE:
        return reasons
    peers = defaultdict[UUID, list[int]](list)
    for i, action in enumerate(actions):
        if reasons[i] is None:
            peers[action.problem_id].append(i)
    for alone in (group[0] for group in peers.values() if len(group) == 1):
        reasons[alone] = "no_peer"
    return reasons


def _own_reason(action: ScoredAction, algorithm: AlgorithmConfig) -> str | None:
    if action.score is None:
        return "unscored"
    if not action.token_ids:
        return "empty"
    return "truncated" if algorithm.truncated == "mask" and action.truncated else None


def _references(
    actions: Sequence[ScoredAction], algorithm: AlgorithmConfig, given: Logprobs | None
) -> Sequence[tuple[float, ...] | None]:
    if algorithm.kl == "none":
        return [None] * len(actions)
    lengths = [len(action.token_ids) for action in actions]
    if given is None or [len(row) for row in given] != lengths:
        raise ValueError(f"kl={algorithm.kl} needs the base policy's log-prob of every token")
    return given


def _rewards(
    actions: Sequence[ScoredAction],
    algorithm: AlgorithmConfig,
    references: Sequence[tuple[float, ...] | None],
) -> Rewards:
    """What the estimators read."""
    lengths = [len(action.token_ids) for action in actions]
    penalties = [
        algorithm.kl_coefficient * returns_to_go(_k1(action, reference))
        for action, reference in zip(actions, references, strict=True)
    ]
    if algorithm.kl != "k1_reward":
        penalties = [torch.zeros(length, dtype=torch.float64) for length in lengths]
    return Rewards(
        rewards=torch.tensor([_reward(a, algorithm) for a in actions], dtype=torch.float64),
        problems=[action.problem_id for action in actions],
        penalties=torch.cat([torch.zeros(0, dtype=torch.float64), *penalties]),
        lengths=torch.tensor(lengths, dtype=torch.int64),
        weights=token_weights(lengths, algorithm.normalise_over),
    )


def _reward(action: ScoredAction, algorithm: AlgorithmConfig) -> float:
    """R in [0, 1], or less where a truncated action is penalised (cf. DAPO, 2503.14476, eq. 13)."""
    reward = (action.score or 0.0) / SCORE_SCALE
    penalised = algorithm.truncated == "penalise" and action.truncated
    return reward - algorithm.truncation_penalty if penalised else reward


def _shares(lengths: Sequence[int], algorithm: AlgorithmConfig) -> list[float]:
    """Each action's share of the loss; they sum to 1."""
    if not lengths:
        return []
    weights = token_weights(lengths, algorithm.loss_over, algorithm.loss_budget_tokens)
    shares = torch.stack([part.sum() for part in weights.split(list(lengths))])
    return (shares / shares.sum()).tolist()


def _k1(action: ScoredAction, reference: tuple[float, ...] | None) -> Tensor:
    sampled = torch.tensor(action.logprobs, dtype=torch.float64)
    if reference is None:
        return torch.zeros_like(sampled)
    return k1(sampled, torch.tensor(reference, dtype=torch.float64))


def _sample(
    action: ScoredAction, advantages: Tensor, reference: tuple[float, ...] | None
) -> TrainingSample:
    return TrainingSample(
        action_id=action.action_id,
        prompt_token_ids=action.prompt_token_ids,
        token_ids=action.token_ids,
        old_logprobs=action.logprobs,
        advantages=tuple(advantages.tolist()),
        reference_logprobs=reference,
    )


def _metrics(
    actions: Sequence[ScoredAction],
    counted: Sequence[ScoredAction],
    rewards: Rewards,
    advantages: Tensor,
) -> dict[str, float]:
    """The batch in numbers, all finite; `zero_variance_*` say where there was nothing to learn."""
    scores = defaultdict[UUID, set[float]](set)
    for action in counted:
        scores[action.problem_id].add(action.score or 0.0)
    returns, weights = rewards.returns(rewards.rewards), rewards.weights
    mean = (weights * returns).sum()
    deviation = (weights * (returns - mean).square()).sum().sqrt()
    same = sum(len(values) == 1 for values in scores.values())
    return {
        "actions": float(len(actions)),
        "left_out": float(len(actions) - len(counted)),
        "truncated": float(sum(action.truncated for action in actions)),
        "score_mean": sum(a.score or 0.0 for a in counted) / max(len(counted), 1),
        "return_mean": float(mean),
        "return_std": float(deviation),
        "zero_variance_batch": float(not advantages.any()),
        "zero_variance_groups": float(same),
        "zero_variance_share": same / max(len(scores), 1),
    }
