"""From scored actions to training samples (REINFORCE++ and its baseline variant, arXiv 2501.03262).

    scores / 10 ─▶ minus the problem's mean ─▶ per-token KL, return-to-go ─▶ one normalisation

An action that is left out is left out of everything: baseline, normaliser and loss. Every action
given comes back as an entry that says what it was worth, or why it did not count.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import torch
from torch import Tensor

from mappa_core.config import AlgorithmConfig
from mappa_core.domain.records import ScoredAction, TrainingSample, UpdateEntry
from mappa_core.learning.advantages import group_baseline, normalise
from mappa_core.learning.objective import token_weights
from mappa_core.learning.returns import SCORE_SCALE, k1, returns_to_go, token_rewards

Logprobs = Sequence[tuple[float, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What a batch of scored actions comes to."""

    samples: tuple[TrainingSample, ...]
    """The actions that count, in the order given."""
    entries: tuple[UpdateEntry, ...]
    """One for every action given, in the order given; `score_id` is the store's to fill in."""
    metrics: Mapping[str, float]
    """How the batch looks: score_mean, return_std, zero_variance_groups, left_out, ..."""


def assign_credit(
    actions: Sequence[ScoredAction],
    algorithm: AlgorithmConfig,
    reference_logprobs: Logprobs | None = None,
) -> Credit:
    """Advantages for one agent's actions of one iteration.

    With `baseline=group`, an action whose problem has no other scored action has nothing to be
    compared with and is left out (`no_peer`); as its own mean it would only shrink the deviation.

    Args:
        actions: N actions, scored or not.
        algorithm: Baseline, normaliser, KL and what to leave out.
        reference_logprobs: N tuples of length T under the base policy; needed where `kl` is on.

    Raises:
        ValueError: `kl` is on and the reference is missing or does not fit the actions.
    """
    reasons = _left_out(actions, algorithm)
    kept = [i for i, reason in enumerate(reasons) if reason is None]
    references = _references(actions, algorithm, reference_logprobs)
    counted = [actions[i] for i in kept]
    raw = _returns(counted, algorithm, [references[i] for i in kept])
    lengths = [len(action.token_ids) for action in counted]
    spread = token_weights(lengths, algorithm.normalise_over)
    advantages = normalise(raw, spread)

    per_action = dict(zip(kept, advantages.split(lengths), strict=True)) if kept else {}
    shares = token_weights(lengths, algorithm.loss_over).split(lengths) if kept else ()
    weights = dict(zip(kept, (float(share.sum()) for share in shares), strict=True))
    return Credit(
        samples=tuple(_sample(actions[i], per_action[i], references[i]) for i in kept),
        entries=tuple(
            UpdateEntry(
                action_id=action.action_id,
                score_id=None,
                advantage=float(per_action[i].mean()) if i in per_action else None,
                weight=weights.get(i, 0.0),
                left_out=reasons[i],
            )
            for i, action in enumerate(actions)
        ),
        metrics=_metrics(actions, counted, raw, spread, advantages),
    )


def _left_out(actions: Sequence[ScoredAction], algorithm: AlgorithmConfig) -> list[str | None]:
    """Why each action does not count; None where it does."""
    reasons = [_own_reason(action, algorithm) for action in actions]
    if algorithm.baseline == "none":
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
    return "truncated" if algorithm.drop_truncated and action.truncated else None


def _references(
    actions: Sequence[ScoredAction], algorithm: AlgorithmConfig, given: Logprobs | None
) -> Sequence[tuple[float, ...] | None]:
    if algorithm.kl == "none":
        return [None] * len(actions)
    lengths = [len(action.token_ids) for action in actions]
    if given is None or [len(row) for row in given] != lengths:
        raise ValueError(f"kl={algorithm.kl} needs the base policy's log-prob of every token")
    return given


def _returns(
    actions: Sequence[ScoredAction],
    algorithm: AlgorithmConfig,
    references: Sequence[tuple[float, ...] | None],
) -> Tensor:
    """Per-token returns before normalisation, action after action; (sum of T,) float64."""
    rewards = torch.tensor([a.score or 0.0 for a in actions], dtype=torch.float64) / SCORE_SCALE
    if algorithm.baseline == "group":
        rewards = group_baseline(rewards, [a.problem_id for a in actions])
    in_reward = algorithm.kl == "k1_reward"
    rows = [
        returns_to_go(
            token_rewards(
                reward,
                _k1(action, reference if in_reward else None),
                algorithm.kl_coefficient,
            )
        )
        for action, reward, reference in zip(actions, rewards, references, strict=True)
    ]
    return torch.cat([torch.zeros(0, dtype=torch.float64), *rows])


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
    returns: Tensor,
    weights: Tensor,
    advantages: Tensor,
) -> dict[str, float]:
    """The batch in numbers, all finite; `zero_variance_*` say where there was nothing to learn."""
    scores = defaultdict[UUID, set[float]](set)
    for action in counted:
        scores[action.problem_id].add(action.score or 0.0)
    mean = (weights * returns).sum()
    deviation = (weights * (returns - mean).square()).sum().sqrt()
    return {
        "actions": float(len(actions)),
        "left_out": float(len(actions) - len(counted)),
        "score_mean": sum(a.score or 0.0 for a in counted) / max(len(counted), 1),
        "return_mean": float(mean),
        "return_std": float(deviation),
        "zero_variance_batch": float(not advantages.any()),
        "zero_variance_groups": float(sum(len(values) == 1 for values in scores.values())),
    }
