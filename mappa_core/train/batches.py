"""Puts training samples into tensors: a minibatch in micro-batches of one prefix tree each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from mappa_core.core.records.episodes import chosen
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.prefix_tree import Cut, PrefixTree, build, root_of
from mappa_core.train.shared_root import SharedRoot

SHORTEST_ROOT = 32
"""Tokens from which on two passes share a root; fewer would not be worth their waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One micro-batch; per-token tensors are (sum of T,) float32, in the order of `tree.reads`.

    T counts the tokens that were sampled; what was given is read by the tree and in no tensor.
    """

    tree: PrefixTree
    real_tokens: int
    """Of all sequences, prompts included, each counted as often as it occurs."""
    lengths: Tensor
    """(B,) int64: T of each sequence."""
    sampler_logprobs: Tensor
    trainer_logprobs: Tensor | None
    """Under the weights before the update; None where those are the weights at hand."""
    advantages: Tensor
    weights: Tensor
    """Each token's share of the whole minibatch's mean, whatever the micro-batch."""
    reference_logprobs: Tensor | None
    """Under the base policy; None where no sample brings them."""
    temperature: float
    """All tokens were sampled at."""
    sampled: Tensor | None = None
    """bool, of all tokens that the tree reads; None where all of them were sampled."""
    root: SharedRoot | None = None
    """What is shared with the batch beside this one; None for nothing."""
    beside: int = 0
    """Distinct tokens of that batch."""

    @property
    def size(self) -> int:
        """Count distinct tokens; of two that share a root, those of the larger one."""
        return max(self.tree.size, self.beside)


def token_weights(
    lengths: Sequence[int],
    over: Literal["samples", "tokens", "budget"],
    budget_tokens: int = 1,
) -> Tensor:
    """Compute each token's share in a mean, over all N actions laid end to end.

    Args:
        lengths: T of each of the N actions, all >= 1.
        over: `samples`: 1 / (N T), every action counts the same; `tokens`: 1 / sum of T, every
            token does; both sum to 1. `budget`: 1 / (N L), so that an action's length neither
            dilutes nor strengthens its tokens (Dr. GRPO, arXiv 2503.20783, section 3).
        budget_tokens: L, for `budget`.

    Returns:
        (sum of T,) float64.
    """
    counts = torch.tensor(lengths, dtype=torch.int64)
    if over == "tokens":
        return torch.full((int(counts.sum()),), 1.0, dtype=torch.float64) / counts.sum()
    shares = counts.double() if over == "samples" else torch.full(counts.shape, budget_tokens)
    return (1.0 / (len(lengths) * shares.double())).repeat_interleave(counts)


def has_gradient(sample: TrainingSample, algorithm: AlgorithmConfig) -> bool:
    """Tell whether the sample's loss can move the weights: an advantage, or a KL pull."""
    return any(sample.advantages) or algorithm.kl_in_loss


def micro_batched(
    samples: Sequence[TrainingSample],
    algorithm: AlgorithmConfig,
    cut: Cut,
    largest_of_two: int = 0,
) -> list[Batch]:
    """Cut a minibatch into micro-batches of one tree each.

    A sample without a gradient takes its share of the mean, but is not computed. Two batches share
    the root of their trees where neither tree is larger than `largest_of_two`: the one that takes
    it comes first, and the one that gives it next.

    Raises:
        ValueError: A KL pull is on and a sample does not bring the base policy's log-probs.
    """
    if algorithm.kl_in_loss and any(s.reference_logprobs is None for s in samples):
        raise ValueError(f"kl={algorithm.kl} needs the base policy's log-probs of every sample")
    lengths = [len(chosen(sample.token_ids, sample.given)) for sample in samples]
    shares = token_weights(lengths, algorithm.loss_over, algorithm.loss_budget_tokens)
    weights = shares.split(lengths) if samples else ()
    live = [
        (sample, weight)
        for sample, weight in zip(samples, weights, strict=True)
        if has_gradient(sample, algorithm)
    ]
    parts = cut(
        [sample.prompt_token_ids for sample, _ in live], [sample.token_ids for sample, _ in live]
    )
    if not largest_of_two:
        return [_batch([live[i] for i in part]) for part in parts]
    batches: list[Batch] = []
    for start in range(0, len(parts), 2):
        two = [[live[i] for i in part] for part in parts[start : start + 2]]
        batches += _sharing(two, largest_of_two) or [_batch(part) for part in two]
    return batches


_Live: TypeAlias = Sequence[tuple[TrainingSample, Tensor]]
"""Samples with a gradient, and their tokens' shares of the mean."""


def _sharing(two: Sequence[_Live], largest: int) -> list[Batch]:
    """Make batches of two parts that share a root; none where they do not, or there is one."""
    nodes = root_of([sample.prompt_token_ids for part in two for sample, _ in part])
    if len(two) == 1 or nodes < SHORTEST_ROOT:
        return []
    root = SharedRoot(nodes)
    giver, taker = _batch(two[0], root), _batch(two[1], root, takes=True)
    sizes = giver.tree.size, taker.tree.size
    if max(sizes) > largest:
        return []
    return [replace(taker, beside=sizes[0]), replace(giver, beside=sizes[1])]


def _batch(part: _Live, root: SharedRoot | None = None, *, takes: bool = False) -> Batch:
    samples, weights = [sample for sample, _ in part], [weight for _, weight in part]
    above = root.nodes if root is not None and takes else 0
    return Batch(
        tree=build([s.prompt_token_ids for s in samples], [s.token_ids for s in samples], above),
        real_tokens=sum(len(s.prompt_token_ids) + len(s.token_ids) for s in samples),
        lengths=torch.tensor([len(weight) for weight in weights], dtype=torch.int64),
        sampler_logprobs=_flat(samples, [s.old_logprobs for s in samples]),
        trainer_logprobs=_flat_if_all(samples, [s.trainer_logprobs for s in samples]),
        advantages=_flat(samples, [s.advantages for s in samples]),
        weights=torch.cat(weights).float(),
        reference_logprobs=_flat_if_all(samples, [s.reference_logprobs for s in samples]),
        temperature=shared_temperature([s.temperature for s in samples]),
        sampled=_sampled(samples),
        root=root,
    )


def _sampled(samples: Sequence[TrainingSample]) -> Tensor | None:
    if all(sample.given is None for sample in samples):
        return None
    tokens = [torch.ones(len(sample.token_ids), dtype=torch.bool) for sample in samples]
    for sample, each in zip(samples, tokens, strict=True):
        if sample.given is not None:
            each[slice(*sample.given)] = False
    return torch.cat(tokens)


def shared_temperature(temperatures: Sequence[float]) -> float:
    """Give the one temperature that a run's actions of training were sampled at.

    Raises:
        ValueError: There is none, or more than one.
    """
    if len(set(temperatures)) != 1:
        raise ValueError(f"a batch is of one temperature, not of {sorted(set(temperatures))}")
    return temperatures[0]


def _flat_if_all(
    samples: Sequence[TrainingSample], rows: Sequence[Sequence[float] | None]
) -> Tensor | None:
    known = [row for row in rows if row is not None]
    return _flat(samples, known) if len(known) == len(rows) else None


def _flat(samples: Sequence[TrainingSample], rows: Sequence[Sequence[float]]) -> Tensor:
    """(sum of T,) what the rows say of the tokens that were sampled."""
    kept = (chosen(row, sample.given) for sample, row in zip(samples, rows, strict=True))
    return torch.tensor([value for row in kept for value in row], dtype=torch.float32)
