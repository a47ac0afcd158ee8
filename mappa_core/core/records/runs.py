"""A run and what is read of it: lines of tables, figures, exported rows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from mappa_core.core.records.episodes import Figure, Given, Message, Phase
from mappa_core.core.records.provenance import Provenance


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
    given: Given
    coach: str | None
    """The coach that gave the training score; None where none was asked."""
    score: float | None
    """In [0, 10]; None where `unscored_reason` says why, or no coach was asked."""
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
    provenance: tuple[Provenance, ...] | None = None
    """What it is made with, once more for each time that it went on otherwise; None where a run of
    an earlier version did not record it."""

    @property
    def measures(self) -> str | None:
        """The name of the run that this one only evaluates; None for one that trains."""
        found = _EVALUATION.fullmatch(self.name)
        return None if found is None else found[1]


_EVALUATION = re.compile(r"(.+)-eval-[0-9a-f]{6}")
"""What trains is never named so: its name ends in four characters."""


def evaluation_name(run: Run, identity: UUID) -> str:
    """The name of a run that evaluates `run` under other settings."""
    return f"{run.name}-eval-{identity.hex[:6]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """One closed episode in a line, as far as it is measured."""

    id: UUID
    phase: Phase
    iteration: int
    problem_id: UUID
    task_type: str
    success: bool | None
    """None where the episode failed before it had an outcome."""
    answer: str | None
    metric: str | None
    """None where answers are right or wrong."""
    value: float | None
    skill: float | None
    mean_score: float | None
    """Over its actions' training scores, in [0, 10]; None where nothing was scored."""
    scored: int
    """How many of its actions have one."""
    attributes: Mapping[str, str | int] = field(default_factory=dict[str, str | int])
    """The problem's."""
    figures: tuple[Figure, ...] | None = None
    """The outcome's."""

    @property
    def failed(self) -> bool:
        """Whether something outside ended it; it has no outcome."""
        return self.success is None

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
    scored: int
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
    """Closed ones, failed ones among them."""
    failed: int
    successes: int
    agents: tuple[AgentFigures, ...]
    seconds_by_activity: Mapping[str, float] = field(default_factory=dict[str, float])
    cost_usd: float = 0.0
    """What coaches took for its actions, scores that did not train included."""

    @property
    def mean_score(self) -> float | None:
        """Over all agents' scored actions, in [0, 10]; None where nothing was scored."""
        scored = sum(each.scored for each in self.agents)
        points = sum((each.mean_score or 0.0) * each.scored for each in self.agents)
        return points / scored if scored else None

    @property
    def success_rate(self) -> float | None:
        """Share of finished episodes whose answer is right; None where none finished."""
        finished = self.episodes - self.failed
        return self.successes / finished if finished else None
