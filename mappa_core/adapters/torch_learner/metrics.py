"""What an update looked like, in the field's words."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mappa_core.domain.records import TrainingSample
from mappa_core.learning.batches import Batch


@dataclass(slots=True, kw_only=True)
class Tally:
    """What the computed tokens of one minibatch add up to."""

    loss: float = 0.0
    tokens: int = 0
    """Response tokens."""
    distinct_tokens: int = 0
    """Nodes of all trees, prompts included."""
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))

    def add(self, batch: Batch, loss: Tensor, figures: Mapping[str, Tensor]) -> None:
        """Add one micro-batch: its summed loss, and figures of shape (sum of T,)."""
        self.loss += float(loss.detach())
        self.tokens += batch.advantages.numel()
        self.distinct_tokens += batch.tree.size
        for name, values in figures.items():
            self.sums[name] += float(values.detach().double().sum())

    def means(self) -> dict[str, float]:
        """Each figure's mean over the computed tokens."""
        return {name: total / self.tokens for name, total in self.sums.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTaken:
    """One optimizer step that was taken."""

    tally: Tally
    grad_norm: float


def report(
    samples: Sequence[TrainingSample], taken: Sequence[StepTaken], seconds: float
) -> dict[str, float]:
    """Means over the optimizer steps that were taken; absent where there was none."""
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
    means = [step.tally.means() for step in taken]
    metrics |= {name: sum(mean[name] for mean in means) / len(taken) for name in means[0]}
    # Until the first step the policy is the one that sampled; what differs is the software.
    metrics["kl_sampler"] = means[0]["kl_sampler"]
    metrics["loss"] = sum(step.tally.loss for step in taken) / len(taken)
    metrics["grad_norm"] = sum(step.grad_norm for step in taken) / len(taken)
    metrics["tokens_per_second"] = metrics["distinct_tokens"] / seconds
    return metrics
