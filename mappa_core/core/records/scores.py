"""What a coach is told about one action, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias
from uuid import UUID

from mappa_core.core import ids
from mappa_core.core.records.episodes import Given, Message, Outcome, Turn
from mappa_core.core.records.tools import ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachIdentity:
    """Which coach scored, with what; a change in any field is another scorer."""

    coach: str
    model: str
    model_version: str
    rubric_version: str
    """Its name; with a model, the way of asking by it, too."""
    rubric_sha256: str
    """Of its files, and of the words and settings of that way."""


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
    own_solution: str | None = None
    """The coach's own solution of the task, made before it saw any work on it."""


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
class CoachCall:
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
    """Sampled for thinking, on top of the reply's; paid like them."""
    request: CoachRequest | None = None
    """None for a coach that is no model."""
    model_version: str | None = None
    """As the provider named it in its answer."""
    attempts: int = 1
    """Calls made; 0 where the answer to an identical request was used."""
    flags: tuple[str, ...] = ()
    """Attempts to influence the coach seen in the agents' text, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachScore(CoachCall):
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
class Unscored(CoachCall):
    """The named absence of a score: excluded from loss, baseline and normaliser."""

    reason: UnscoredReason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What coaches have taken."""

    calls: int = 0
    tokens: int = 0
    """Prompt, reply and thoughts together."""
    cost_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRange:
    """The scores of one action, of whatever coaches gave it one."""

    episode_id: UUID
    turn_index: int
    trained: float
    """The score that trains it; the highest where none does."""
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreEntry:
    """One score of one action, as stored: many per action, exactly one of which trained."""

    id: UUID
    episode_id: UUID
    turn_index: int
    identity: CoachIdentity
    repeat_index: int
    label_visible: bool
    """Whether the coach knew anything of the truth; `visibility` says what it was allowed."""
    trained: bool
    """Whether this is the score the update uses."""
    score: CoachScore | Unscored
    visibility: LabelVisibility = LabelVisibility.NEVER

    @property
    def action_id(self) -> UUID:
        """The scored action."""
        return ids.action_id(self.episode_id, self.turn_index)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAction:
    """One action of one agent with the score that trains it, as the learner reads it back."""

    action_id: UUID
    agent: str
    episode_id: UUID
    problem_id: UUID
    rollout_index: int
    turn_index: int
    policy_step: int
    """Updates the sampling weights had had."""
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    truncated: bool
    """The token budget ran out before the model ended its turn."""
    score: float | None
    """In [0, 10]; None where the coach left it unscored."""
    score_id: UUID | None = None
    """Of the row that trains it, also where that row says why there is no score."""
    temperature: float = 1.0
    """It was sampled at, above 0; `logprobs` are of softmax(logits / temperature)."""
    given: Given = None
