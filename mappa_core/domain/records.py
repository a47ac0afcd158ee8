"""The values that flow through MAPPA, one way.

    Problem ─▶ Episode ─▶ Observation ─▶ Action ─▶ ToolResult ─▶ Turn
                                            └─▶ CoachScore | Unscored
    Turn + score ─▶ ScoredAction ─▶ TrainingSample ─▶ UpdateReport ─▶ Checkpoint ─▶ PolicyVersion

Dimension letters, used everywhere: P problems, G episodes per problem, A agents, N actions,
T tokens, B batch, V vocabulary. Log-probabilities are natural logarithms under the model at
temperature 1, whatever temperature the token was sampled at.

Identity is a function of content (see `ids`), so writing the same thing twice is harmless.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal, TypeAlias
from uuid import UUID

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


class ToolStatus(StrEnum):
    """What became of one sandboxed run."""

    OK = "ok"
    NONZERO = "nonzero"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"


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
    """0 is greedy; training samples at 1."""
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Token ids in: everything an engine needs to sample one action."""

    policy: PolicyVersion
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Token ids out: what an engine sampled. `token_ids` and `logprobs` have the same length T."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What one agent did: the exact ids that were sampled, and their text."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """Shape (T,), the end token included where the model ended its turn."""
    logprobs: tuple[float, ...]
    """Shape (T,), under the sampling policy at temperature 1; float32, as engines compute them."""
    text: str
    """The decoded ids without control tokens, `<think>` blocks included."""
    finish_reason: FinishReason
    policy_version_id: UUID
    temperature: float
    seed: int
    started_at: datetime
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file a turn wrote (or read), as bytes that are never opened on the host."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedFile:
    """A file the sandbox left behind that was not accepted."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one sandboxed run."""

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    open_files: int = 128
    workspace_bytes: int = 64 * 2**20
    inodes: int = 2048
    output_bytes: int = 64 * 2**10
    """Kept of each stream; the middle is cut and both ends stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What happened when an action's code was run."""

    code: str
    status: ToolStatus
    exit_code: int | None
    """None where the program was killed before it could exit."""
    stdout: str
    """Decoded as UTF-8 with `surrogateescape` undone as `\\xNN`, so any bytes survive readably."""
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    seconds: float
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    tier: str
    """Which isolation really held, e.g. `bubblewrap+cgroup+seccomp`."""
    written: tuple[Artifact, ...] = ()
    """Files with new content, and those written anew with the old one."""
    read: tuple[Artifact, ...] | None = None
    """Earlier turns' files whose bytes the program read; None where the tier cannot know."""
    removed: tuple[str, ...] = ()
    """Earlier turns' files that are no longer there."""
    rejected: tuple[RejectedFile, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachIdentity:
    """Who scored, with what; a change in any field is another scorer."""

    coach: str
    model: str
    model_version: str
    rubric_version: str
    rubric_sha256: str


class LabelVisibility(StrEnum):
    """What a coach may know of the truth when it scores an agent."""

    NEVER = "never"
    """Nothing; the default."""
    OUTCOME_ONLY = "outcome_only"
    """Whether the team was right in the end."""
    FULL = "full"
    """That, and the expected answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One measured thing given to a coach as evidence, e.g. `roc_auc` and `0.81`."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Duty:
    """What one agent of a team owes the next."""

    agent: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachCase:
    """The evidence a coach reads about one action; by default it holds no hidden answer."""

    statement: str
    agent: str
    messages: tuple[Message, ...]
    """What the agent saw."""
    text: str
    """What the agent wrote."""
    tool_result: ToolResult | None
    earlier: tuple[Turn, ...]
    """The episode's turns before this one."""
    task_type: str = ""
    """The problem's kind; rubrics must treat all kinds alike."""
    facts: tuple[Fact, ...] = ()
    """What was measured of the action's results."""
    outcome: Outcome | None = None
    """The truth about the episode, where the policy lets the coach see it."""
    expected_answer: str | None = None
    """The hidden answer, where the policy lets the coach see it in full."""
    sample: int = 0
    """Which of its repeats this is; equal cases of one sample need to be asked about only once."""
    duties: tuple[Duty, ...] = ()
    """Which files each agent has to leave behind, in the order of the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionMark:
    """A coach's mark for one criterion of its rubric."""

    name: str
    mark: float
    """In [0, 10]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachRequest:
    """What a coach was asked, word for word."""

    system: str
    """Instructions and rubric; the same for all actions of one agent, so providers cache it."""
    prompt: str
    """The case, agents' text in fences."""
    settings: Mapping[str, str | int | float | None] = field(
        default_factory=dict[str, str | int | float | None]
    )
    """How it was sampled: model, temperature, thinking budget, output limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What asking a coach once took, all attempts together."""

    seconds: float = 0.0
    raw_reply: str | None = None
    """The last reply, word for word."""
    prompt_tokens: int | None = None
    reply_tokens: int | None = None
    cost_usd: float | None = None
    cached_tokens: int | None = None
    """Of the prompt tokens, those the provider had cached."""
    thought_tokens: int | None = None
    """Sampled for thinking, beside the reply's; paid like them."""
    request: CoachRequest | None = None
    """None for a coach that is no model."""
    model_version: str | None = None
    """As the provider named it in its answer."""
    attempts: int = 1
    """Calls made; 0 where the answer to an identical request was used."""
    flags: tuple[str, ...] = ()
    """Attempts to influence the coach seen in the agents' text, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachScore(Asked):
    """A coach's judgement of one action."""

    value: float
    """In [0, 10]."""
    rationale: str
    criteria: tuple[CriterionMark, ...] = ()
    blamed: str | None = None
    """The agent or file that caused what went wrong, as the coach names it."""
    correction: str | None = None
    """What the agent should have done, where the coach was asked."""

    def __post_init__(self) -> None:
        """Refuse a number no coach can give.

        Raises:
            ValueError: `value` is not in [0, 10].
        """
        if not 0.0 <= self.value <= 10.0:
            raise ValueError(f"a coach score lies in [0, 10], not {self.value}")


UnscoredReason: TypeAlias = Literal[
    "timeout", "refused", "unparsable", "blocked", "rate_limited", "out_of_budget", "error"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unscored(Asked):
    """The named absence of a score: excluded from loss, baseline and normaliser."""

    reason: UnscoredReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What coaches have taken so far."""

    calls: int = 0
    tokens: int = 0
    """Prompt, reply and thoughts together."""
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreEntry:
    """One score of one action, as stored: many per action, exactly one of which trained."""

    id: UUID
    action_id: UUID
    identity: CoachIdentity
    repeat_index: int
    label_visible: bool
    """Whether the coach knew anything of the truth; `visibility` says what it was allowed."""
    trained: bool
    """Whether this is the score the update uses."""
    score: CoachScore | Unscored
    visibility: LabelVisibility = LabelVisibility.NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAction:
    """One action of one agent with the score that trains it, as the learner reads it back."""

    action_id: UUID
    episode_id: UUID
    problem_id: UUID
    rollout_index: int
    turn_index: int
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool
    """The token budget ran out before the model ended its turn."""
    score: float | None
    """In [0, 10]; None where the coach left it unscored."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedAction:
    """One action with what was made of it, for people who train elsewhere."""

    action_id: UUID
    episode_id: UUID
    problem_id: UUID
    phase: Phase
    iteration: int
    rollout_index: int
    turn_index: int
    agent: str
    policy_step: int
    """Updates the sampling weights had had."""
    task_type: str
    messages: tuple[Message, ...]
    text: str
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    coach: str | None
    """Who gave the training score; None where nobody was asked."""
    score: float | None
    """In [0, 10]; None where `unscored_reason` says why, or nobody was asked."""
    rationale: str | None
    unscored_reason: str | None
    success: bool | None
    """The truth about the episode; None where it failed."""
    advantage: float | None
    weight: float | None
    left_out: str | None


class RunStatus(StrEnum):
    """Where a run stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training (or evaluation) from start to end."""

    id: UUID
    name: str
    team: str
    config: Mapping[str, object]
    """The resolved configuration as JSON, addresses and secrets excluded."""
    code_version: str
    seed: int
    sandbox_tier: str
    started_at: datetime
    status: RunStatus = RunStatus.RUNNING
    ended_at: datetime | None = None
    error: str | None = None
    prefect_flow_run_id: str | None = None
    mlflow_run_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """One closed episode in a line."""

    id: UUID
    phase: Phase
    iteration: int
    task_type: str
    success: bool | None
    """None where the episode failed before it had an outcome."""
    mean_score: float | None
    """Over its actions' training scores, in [0, 10]; None where nothing was scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutEpisode:
    """One closed held-out episode, as far as it is measured."""

    problem_id: UUID
    success: bool
    failed: bool
    """Something outside ended it; it has no outcome."""
    answer: str | None
    metric: str | None
    """None where answers are right or wrong."""
    value: float | None
    skill: float | None

    @property
    def invalid(self) -> bool:
        """Whether it has an outcome, and nothing in it that could be measured."""
        handed_in = self.answer if self.metric is None else self.value
        return not self.failed and handed_in is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFigures:
    """One agent's numbers over one iteration's episodes."""

    agent: str
    actions: int
    unscored: int
    mean_score: float | None
    """In [0, 10]; None where nothing was scored."""
    tokens: int
    """Sampled, without prompts."""
    tool_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFigures:
    """What one iteration's episodes came to, read back from the store."""

    phase: Phase
    iteration: int
    episodes: int
    failed: int
    successes: int
    agents: tuple[AgentFigures, ...]
    seconds_by_activity: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def success_rate(self) -> float | None:
        """Share of finished episodes whose answer is right; None where none finished."""
        finished = self.episodes - self.failed
        return self.successes / finished if finished else None
