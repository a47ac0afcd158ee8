"""What an update consists of, apart from who computes it: its order, rate, place and names."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from mappa_core.core.ids import content_id, policy_version_id
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import Checkpoint, TrainingSample
from mappa_core.train.checkpoints import Saved
from mappa_core.train.config import AlgorithmConfig, LearnerConfig
from mappa_core.train.schedule import cosine


def minibatches(
    samples: Sequence[TrainingSample], learner: LearnerConfig, seed: int
) -> Iterator[list[TrainingSample]]:
    """The samples of each optimizer step, epoch after epoch, in an order of the seed's."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(learner.epochs):
        order = torch.randperm(len(samples), generator=generator)
        for part in order.tensor_split(learner.minibatches):
            yield [samples[i] for i in part.tolist()]


def needs_trainer_logprobs(learner: LearnerConfig, algorithm: AlgorithmConfig) -> bool:
    """Whether the weights before the update must be asked; with one step they are those at hand.

    A correction needs them, and so does a guard of the mismatch: from the second step on it would
    take what the policy has learnt for a sampler that differs.
    """
    mismatch, guard = algorithm.mismatch, algorithm.guard
    corrected = mismatch.importance != "none" or mismatch.sequence_mask is not None
    guarded = guard.mismatch_kl_max is not None or guard.effective_sample_size_min is not None
    return (corrected or guarded) and learner.epochs * learner.minibatches > 1


def with_trainer_logprobs(
    samples: Sequence[TrainingSample], rows: Sequence[tuple[float, ...]]
) -> tuple[TrainingSample, ...]:
    """The samples with what the trainer itself says of their tokens before the update."""
    return tuple(
        replace(sample, trainer_logprobs=row) for sample, row in zip(samples, rows, strict=True)
    )


def learning_rate(learner: LearnerConfig, step: int, total_steps: int) -> float:
    """The rate of one update."""
    return cosine(
        step,
        total_steps,
        peak=learner.learning_rate,
        warmup_fraction=learner.warmup_fraction,
        final_fraction=learner.final_fraction,
    )


def directory_after(checkpoints: Path, policy: PolicyVersion) -> Path:
    """Where the checkpoint of the next step goes."""
    return checkpoints / str(policy.run_id) / policy.agent / str(policy.step + 1)


def after(policy: PolicyVersion, directory: Path, saved: Saved) -> tuple[PolicyVersion, Checkpoint]:
    """The next policy version and its checkpoint's record."""
    version = replace(
        policy,
        id=policy_version_id(policy.run_id, policy.agent, policy.step + 1),
        step=policy.step + 1,
        adapter_uri=str(directory),
    )
    return version, Checkpoint(
        id=content_id("checkpoint", version.id, saved.sha256),
        policy_version_id=version.id,
        directory=str(directory),
        sha256=saved.sha256,
        size_bytes=saved.size_bytes,
    )
