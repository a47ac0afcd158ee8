"""What happens in an episode: a problem, what an agent sees, what it does, how it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar
from uuid import UUID

from mappa_core.core.records.tools import ToolResult

T = TypeVar("T")

Phase: TypeAlias = Literal["train", "held_out"]
"""Why an episode was played: to learn from, or to measure with."""


class StopReason(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"
    """Every agent had its say."""
    MAX_TURNS = "max_turns"
    """An agent used up its turns and the team could not go on without it."""
    FAILED = "failed"
    """Something outside broke; the turns recorded so far are kept, none is trained on."""


class FinishReason(StrEnum):
    """Why the engine stopped sampling."""

    STOP = "stop"
    """The model ended its turn; the end token is the last sampled token."""
    LENGTH = "length"
    """The token budget ran out."""
    LENGTH_IN_THOUGHT = "length_in_thought"
    """The token budget ran out inside a thought: nothing was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing to solve. `answer` is never shown to an agent nor, by default, to a coach."""

    id: UUID
    """`ids.problem_id`: a function of the statement alone, so disjointness is by content."""
    dataset: str
    """Where it comes from, e.g. `arithmetic` or `aime`."""
    task_type: str
    """What kind of work it is; the audit compares coaches across these."""
    level: int
    """Difficulty, 1 is easiest; 0 where the source does not say."""
    statement: str
    """The words the agents read."""
    answer: str
    """The expected answer, as text."""
    attributes: Mapping[str, str | int] = field(default_factory=dict[str, str | int], hash=False)
    """What else is known of it, by name, e.g. contest, year and number; not part of what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One chat message. `token_ids` are the ids sampled for it, where the agent itself said it."""

    role: Literal["system", "user", "assistant"]
    content: str
    token_ids: tuple[int, ...] | None = None
    """Spliced into the prompt as they were sampled, so no text is tokenised twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """The weights of one agent of one run after `step` updates; step 0 is the base model."""

    id: UUID
    run_id: UUID
    agent: str
    step: int
    base_model: str
    """Directory or hub id of the frozen base weights."""
    adapter_uri: str | None
    """Directory of the LoRA adapter or of the whole weights; None for the bare base model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one agent sees before it acts."""

    agent: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    temperature: float
    """0 is greedy, which training never is."""
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Token ids in: everything an engine needs to sample one action."""

    policy: PolicyVersion
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int
    problem_id: UUID | None = None
    """Requests of one problem share much of their prompts; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Token ids out: what an engine sampled. `token_ids` and `logprobs` have the same length T."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    seconds: float


Given: TypeAlias = tuple[int, int] | None
"""Where an action's tokens were not sampled but put there, to end a thought at its limit: the first
and the one after the last. Their log-probs are 0, and nothing is learnt from them."""


def chosen(values: Sequence[T], given: Given) -> Sequence[T]:
    """Leave out what belongs to tokens that were given; (T,)."""
    return values if given is None else [*values[: given[0]], *values[given[1] :]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one agent did: the exact ids that were sampled, and their text."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Shape (T,), the end token included where the model ended its turn."""
    logprobs: tuple[float, ...]
    """Shape (T,), of softmax(logits / temperature), at 0 of softmax(logits); float32, as engines
    compute them."""
    text: str
    """The decoded ids without control tokens, `<think>` blocks included; the tag of a thought that
    the chat template opened in the prompt comes first."""
    finish_reason: FinishReason
    policy_version_id: UUID
    temperature: float
    seed: int
    started_at: datetime
    seconds: float
    given: Given = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One agent's observation, its action, and what its code did (None where it wrote none)."""

    index: int
    """Position in the episode, from 0, over all agents."""
    agent: str
    observation: Observation
    action: Action
    tool_result: ToolResult | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measure of a submission that is comparable over all tasks of its kind."""

    name: str
    """One of `MEASURED` for the kind of task."""
    value: float | None
    """None where nothing could be measured."""
    constant: float
    """What a constant prediction gets on the same labels: the charge for a failure."""

    @property
    def charged(self) -> float:
        """The value, or what a failure is charged in its place."""
        return self.constant if self.value is None else self.value


MEASURED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "classification": ("accuracy", "balanced_accuracy", "f1", "roc_auc"),
        "regression": ("rmse_over_sd", "mae_over_mad", "r2", "rmse_percent_of_range"),
        "extraction": ("jaccard",),
    }
)
"""Figures of each submission, whatever its task's own metric, by kind of task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The truth about an episode, computed by us and never by the coach."""

    success: bool
    answer: str | None
    """What the team answered; None where it boxed nothing."""
    method: str
    """How the answer was compared, e.g. `math-verify`."""
    metric: str | None = None
    """The task's own metric, where it has one, e.g. `rmse`."""
    value: float | None = None
    """What was measured, in the metric's unit; None where nothing could be measured."""
    charged: float | None = None
    """`value`, or what a failure is charged in its place; see docs/evaluation.md."""
    skill: float | None = None
    """In [0, 1]: 0 for a constant prediction, worse or none, 1 for a perfect one."""
    detail: str | None = None
    """Why nothing could be measured, or what to mind about the measurement."""
    figures: tuple[Figure, ...] | None = None
    """What is comparable over tasks; None where nothing is measured, or was by an earlier
    version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One team's attempt at one problem."""

    id: UUID
    run_id: UUID
    phase: Phase
    iteration: int
    """Train: 1, 2, ...; held out: the number of updates the policies had had."""
    problem: Problem
    rollout_index: int
    """0 .. G-1: which of the problem's episodes this is."""
    turns: tuple[Turn, ...] = ()
    stop_reason: StopReason | None = None
    """None while it runs."""
    error: str | None = None
    outcome: Outcome | None = None

    def with_turn(self, turn: Turn) -> "Episode":
        """This episode, one turn longer."""
        return replace(self, turns=(*self.turns, turn))

    def closed(
        self, reason: StopReason, *, outcome: Outcome | None = None, error: str | None = None
    ) -> "Episode":
        """This episode, ended for `reason`."""
        return replace(self, stop_reason=reason, outcome=outcome, error=error)

    def turns_of(self, agent: str) -> tuple[Turn, ...]:
        """The trajectory of one agent: its own turns, in order."""
        return tuple(turn for turn in self.turns if turn.agent == agent)
