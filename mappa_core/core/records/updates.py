"""What actions become: samples, an update, the checkpoint that came out."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from mappa_core.core.records.episodes import Given, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One action as the loss sees it; all per-token tuples have length T."""

    action_id: UUID
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    old_logprobs: tuple[float, ...]
    """Under the policy that sampled it."""
    advantages: tuple[float, ...]
    reference_logprobs: tuple[float, ...] | None = None
    """Under the base policy; None where no KL term needs them."""
    trainer_logprobs: tuple[float, ...] | None = None
    """Under the weights before the update, as the learner computes them; None where not asked."""
    temperature: float = 1.0
    """It was sampled at; all log-probs are of softmax(logits / temperature)."""
    given: Given = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateEntry:
    """What one update made of one action."""

    action_id: UUID
    score_id: UUID | None
    advantage: float | None
    """Mean over the action's tokens, after normalisation; None where it was left out."""
    weight: float
    """Its share of the loss, in [0, 1]; the shares of one update sum to 1."""
    left_out: str | None
    """Why it did not count, e.g. `unscored`; None where it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Weights on disk, verified by hash."""

    id: UUID
    policy_version_id: UUID
    directory: str
    sha256: str
    """Of the adapter's safetensors file."""
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredVersion:
    """One version of a registered model, as the registry knows it."""

    name: str
    """Of the model, `mappa-<team>-<agent>`."""
    version: str
    run_id: UUID
    """The run that trained it."""
    agent: str
    step: int
    aliases: tuple[str, ...]
    """`candidate`, `champion`."""
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """What one update did to one agent."""

    metrics: Mapping[str, float]
    """Named in the field's words: loss, kl_base, clip_fraction, grad_norm, learning_rate, ..."""
    checkpoint: Checkpoint
    policy: PolicyVersion
    seconds: float
    skipped: str | None = None
    """Which band the update left, so that the weights stayed as they were; None where none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One learning step of one agent, as stored."""

    id: UUID
    run_id: UUID
    agent: str
    iteration: int
    from_policy_id: UUID
    to_policy_id: UUID
    metrics: Mapping[str, float]
    entries: tuple[UpdateEntry, ...]
    seconds: float
    skipped: str | None = None
    """Which band it left, where the guard did not take it."""
