"""What an audit writes down: findings, anchors, people's labels and corrections of scores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from uuid import UUID

Stratum: TypeAlias = Literal["all", "right", "wrong"]
Picked: TypeAlias = Literal["contested", "unsure", "random", "audit"]
"""Coaches disagree about it, it is of a kind the audit cannot tell about, or a random sample drew
it: of all actions, or of its agent and task type."""
SAMPLES: tuple[Picked, ...] = ("random", "audit")
"""Reasons that know nothing of what a label will say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRule:
    """What a run's actions were held to account for, and what with."""

    by_problem: bool = True
    """Whether an action is compared with others of its problem, and not with the whole batch."""
    credit: str = "action"
    """`action`, its own score; `return`, its agent's later ones too; `team`, the mean of its own
    and all later ones of the episode."""
    discount: float = 1.0
    """Of a return, for each of the agent's actions that a score is ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRun:
    """What an audit needs to know of a run."""

    id: UUID
    name: str
    team: str
    baseline: str | None
    """What its advantages are relative to: `group` or `none`; None where the run does not say."""
    credit: str = "action"
    discount: float = 1.0
    """As in `CreditRule`."""

    @property
    def rule(self) -> CreditRule:
        """How its scores became advantages; others of its problem are the usual comparison."""
        return CreditRule(
            by_problem=self.baseline != "none", credit=self.credit, discount=self.discount
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of an audit, with its uncertainty and the query that gives what it rests on."""

    kind: str
    """`task_type`, `association`, `drift`, `health`, `noise`, `policy`, `agreement`, ..."""
    subject: str
    against: str = ""
    stratum: str = "all"
    verdict: str = ""
    """`biased`, `equivalent`, `cannot tell`, a cause of drift, or empty for a plain figure."""
    estimate: float | None = None
    unit: str = "points"
    low: float | None = None
    high: float | None = None
    """Of the 95 % interval."""
    p_value: float | None = None
    """After Benjamini-Hochberg where it belongs to a family."""
    margin: float | None = None
    actions: int = 0
    problems: int = 0
    iteration: int | None = None
    """The iteration it speaks of, e.g. the one a bias set in; None for the whole run."""
    sql: str = ""
    """Runs on the `audit` views; before it belongs to a run, with `{run}` where the id goes."""
    detail: Mapping[str, float | int | str | None] = field(
        default_factory=dict[str, float | int | str | None]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Figure):
    """A figure that belongs to a run, as it is stored."""

    id: UUID
    """Of run, kind, subject, stratum and iteration: an audit done again replaces its own
    findings."""
    run_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A stored action that the coach scores again every iteration."""

    id: UUID
    run_id: UUID
    action_id: UUID
    episode_id: UUID
    turn_index: int
    known_score: float | None = None
    """In [0, 10], as given by a person; None where the baseline repeats say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An action that could become an anchor."""

    action_id: UUID
    episode_id: UUID
    turn_index: int
    agent: str
    task_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorScore:
    """One scoring of an anchor."""

    anchor_id: UUID
    iteration: int
    """0 for the baseline repeats."""
    repeat_index: int
    score: float | None
    unscored_reason: str | None
    coach: str
    model_version: str
    rubric_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionCount:
    """How many of an iteration's training scores one version of the coach's model gave."""

    iteration: int
    model_version: str
    """As its replies said."""
    actions: int


Change: TypeAlias = Literal[
    "as it was",
    "again",
    "task type",
    "agent name",
    "rubric order",
    "padded",
    "trimmed",
    "outcome hidden",
    "told right",
    "told wrong",
]
"""What an experiment changes in a stored action before the coach scores it again; the first two
change nothing, and the second is the first one's repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentScore:
    """One scoring of a stored action with one thing changed."""

    action_id: UUID
    change: Change
    put: str
    """In the place of what was changed, e.g. another task type; empty for nothing."""
    coach: str
    model: str
    model_version: str
    rubric_sha256: str
    """Of the coach as it trains, also where its rubric was turned round for this."""
    unseen: bool
    """Whether the change does not reach the coach, which then was not asked."""
    score: float | None = None
    unscored_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanLabel:
    """A person's score of an action."""

    action_id: UUID
    labeller: str
    score: float
    """In [0, 10]."""
    note: str = ""
    picked: Picked = "random"
    """Why the action was shown to the person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionTerm:
    """Points taken off the scores of one kind of action."""

    task_type: str
    stratum: Stratum
    estimate: float
    """As the audit found it."""
    points: float
    """What is subtracted: shrunk and capped; 0 where the audit cannot tell."""
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A debiasing of a coach, good for one coach and rubric; its id is its content."""

    id: UUID
    run_id: UUID
    """The run it was estimated on."""
    iteration: int
    """Estimated on iterations up to this one."""
    coach: str
    rubric_sha256: str
    terms: tuple[CorrectionTerm, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedScore:
    """What a correction made of one score; both numbers stay."""

    score_id: UUID
    correction_id: UUID
    raw: float
    corrected: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamLine:
    """How one kind of pair, or one agent's, came out of a coach's exam."""

    of: str
    share: float
    """Of its pairs, those in their known order, in [0, 1]; a tie counts half."""
    low: float
    high: float
    """Of the 90 % interval, clustered by problem."""
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamScore:
    """What a coach gave one case of its exam."""

    problem: int
    agent: str
    work: str
    """What the scripted action is worth, e.g. `right` or `wrong and praised`."""
    score: float | None
    said: str
    """Its rationale, or why there is no score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """What a coach reached in its exam for a team."""

    id: UUID
    """Of the coach, all that it is told, how it is sampled, and the cases."""
    coach: str
    model: str
    rubric_version: str
    rubric_sha256: str
    team: str
    share: float
    """The mark: of all pairs, those in their known order, in [0, 1]; chance is 0.5."""
    low: float
    high: float
    """Of the 90 % interval, clustered by problem."""
    passed: bool
    pairs: int
    problems: int
    asked: int
    """Cases."""
    unscored: int
    """Cases without a score."""
    lines: tuple[ExamLine, ...]
    """By kind of pair, then by agent."""
    scores: tuple[ExamScore, ...]
