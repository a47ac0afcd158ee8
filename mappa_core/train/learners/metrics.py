"""What an update looked like, in the field's words."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.batches import Batch
from mappa_core.train.learners.steps import StepLoss
from mappa_core.train.mismatch import effective_share

OF_THE_SAMPLER = ("kl_sampler", "mismatch_kl", "effective_sample_size")
"""Until the first step the policy is the one that sampled; what differs is the software."""


def _zeros() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the computed tokens of one minibatch add up to."""

    loss: float = 0.0
    tokens: int = 0
    """Response tokens."""
    distinct_tokens: int = 0
    """Nodes of all trees, prompts included."""
    real_tokens: int = 0
    """Of all sequences, prompts included, shared ones counted for each."""
    sums: defaultdict[str, float] = field(default_factory=_zeros)

    def add(self, batch: Batch, step: StepLoss) -> None:
        """Add one micro-batch."""
        self.loss += float(step.loss.detach())
        self.tokens += batch.advantages.numel()
        self.distinct_tokens += batch.tree.size
        self.real_tokens += batch.real_tokens
        for name, values in step.figures.items():
            self.sums[name] += float(values.detach().double().sum())

    def merge(self, other: "Tally") -> None:
        """Add what another process computed."""
        self.loss += other.loss
        self.tokens += other.tokens
        self.distinct_tokens += other.distinct_tokens
        self.real_tokens += other.real_tokens
        for name, total in other.sums.items():
            self.sums[name] += total

    def means(self) -> dict[str, float]:
        """Each figure's mean over the computed tokens."""
        means = {name: total / self.tokens for name, total in self.sums.items()}
        first, second = self.sums["mismatch_ratio"], self.sums["mismatch_ratio_squared"]
        means["effective_sample_size"] = effective_share(first, second, self.tokens)
        del means["mismatch_ratio"], means["mismatch_ratio_squared"]
        return means


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """One optimizer step that was computed."""

    tally: Tally
    grad_norm: float

    def figures(self) -> dict[str, float]:
        """What a guard looks at."""
        return self.tally.means() | {"grad_norm": self.grad_norm}


def report(
    samples: Sequence[TrainingSample], taken: Sequence[StepTaken], seconds: float
) -> dict[str, float]:
    """Means over the optimizer steps that were computed; absent where there was none.

    Args:
        samples: All of the update.
        taken: Its steps.
        seconds: What they took together.
    """
    advantages = torch.tensor(
        [value for sample in samples for value in sample.advantages], dtype=torch.float64
    )
    still = sum(not any(sample.advantages) for sample in samples)
    metrics = {
        "samples": float(len(samples)),
        "optimizer_steps": float(len(taken)),
        "tokens": float(advantages.numel()),
        "zero_advantage_share": still / max(len(samples), 1),
        "advantage_max_abs": float(advantages.abs().max()) if len(samples) else 0.0,
        "advantage_mean": float(advantages.mean()) if len(samples) else 0.0,
        "distinct_tokens": float(sum(step.tally.distinct_tokens for step in taken)),
    }
    if not taken:
        return metrics
    figures = [step.figures() for step in taken]
    metrics |= {name: sum(one[name] for one in figures) / len(taken) for name in figures[0]}
    metrics |= {name: figures[0][name] for name in OF_THE_SAMPLER}
    metrics["loss"] = sum(step.tally.loss for step in taken) / len(taken)
    metrics["tokens_per_second"] = sum(step.tally.real_tokens for step in taken) / seconds
    metrics["distinct_tokens_per_second"] = metrics["distinct_tokens"] / seconds
    return metrics
