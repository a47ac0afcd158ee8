"""Sums up what an update looked like, in the field's words, and holds it against the guard."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from mappa_core.core.records.episodes import chosen
from mappa_core.core.records.updates import TrainingSample
from mappa_core.train.batches import Batch
from mappa_core.train.clipped_objective import StepLoss
from mappa_core.train.config import GuardConfig
from mappa_core.train.mismatch import effective_share

OF_THE_SAMPLER = ("kl_sampler", "mismatch_kl", "effective_sample_size")
"""Until the first step the policy is the one that sampled; what differs is the software."""


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
    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

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
        """Take each figure's mean over the computed tokens."""
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
        """List what a guard looks at."""
        return self.tally.means() | {"grad_norm": self.grad_norm}


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The optimizer steps of one update."""

    taken: tuple[StepTaken, ...]
    skipped: str | None
    """Which band the last one left, so that the update is not taken; None where none."""

    def metrics(self, samples: Sequence[TrainingSample], seconds: float) -> dict[str, float]:
        """Report means over the steps that were computed; absent where there was none."""
        advantages = torch.tensor(
            [value for each in samples for value in chosen(each.advantages, each.given)],
            dtype=torch.float64,
        )
        still = sum(not any(sample.advantages) for sample in samples)
        distinct_tokens = float(sum(step.tally.distinct_tokens for step in self.taken))
        return {
            "samples": float(len(samples)),
            "optimizer_steps": float(len(self.taken)),
            "tokens": float(advantages.numel()),
            "zero_advantage_share": still / max(len(samples), 1),
            "advantage_max_abs": float(advantages.abs().max()) if len(samples) else 0.0,
            "advantage_mean": float(advantages.mean()) if len(samples) else 0.0,
            "distinct_tokens": distinct_tokens,
            "skipped": float(self.skipped is not None),
            **(self._of_taken(seconds) if self.taken else {}),
        }

    def _of_taken(self, seconds: float) -> dict[str, float]:
        figures = [step.figures() for step in self.taken]
        means = {name: sum(one[name] for one in figures) / len(figures) for name in figures[0]}
        means |= {name: figures[0][name] for name in OF_THE_SAMPLER}
        tallies = [step.tally for step in self.taken]
        return means | {
            "loss": sum(one.loss for one in tallies) / len(tallies),
            "tokens_per_second": sum(one.real_tokens for one in tallies) / seconds,
            "distinct_tokens_per_second": sum(one.distinct_tokens for one in tallies) / seconds,
        }


def out_of_band(figures: Mapping[str, float], guard: GuardConfig) -> str | None:
    """Say why a step is not taken, with the key that forbids it; None where it may be.

    A figure that is missing is in its band.
    """
    for key, bound in guard:
        figure, _, side = key.rpartition("_")
        value = figures.get(figure)
        if bound is None or value is None:
            continue
        if value > bound if side == "max" else value < bound:
            where = "above" if side == "max" else "below"
            return f"{figure} {value:.4g} is {where} algorithm.guard.{key}={bound:g}"
    return None
