"""What the store keeps and gives back."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from mappa_core.core.records.episodes import Episode, Phase, PolicyVersion, Problem, Turn
from mappa_core.core.records.runs import (
    EpisodeSummary,
    HeldOutEpisode,
    IterationFigures,
    Run,
    RunStatus,
)
from mappa_core.core.records.scores import ScoredAction, ScoreEntry, Spending
from mappa_core.core.records.updates import Checkpoint, Update, UpdateEntry


class Store(Protocol):
    """Every prompt, token, score and update, for good.

    Every write is durable when the call returns and harmless when repeated. All methods raise
    `StoreError` where Postgres is unreachable, refuses or is full.
    """

    def open_run(self, run: Run) -> None:
        """Add a run; a repeat changes nothing."""
        ...

    def link_run(
        self, run_id: UUID, *, prefect_flow_run_id: str | None, mlflow_run_id: str | None
    ) -> None:
        """Write down the run's ids in the other systems; None leaves a link as it is."""
        ...

    def close_run(self, run_id: UUID, status: RunStatus, error: str | None = None) -> None:
        """Set where the run stands; `RUNNING` reopens it."""
        ...

    def run(self, name_or_id: str) -> Run:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        ...

    def runs(self, limit: int = 50) -> tuple[Run, ...]:
        """The latest runs, newest first."""
        ...

    def claim_run(self, run_id: UUID) -> AbstractContextManager[object]:
        """Have a run to oneself until the block, or this process, ends.

        Raises:
            RunBusy: Another process has it. Later, from everything the store is asked for inside
                the block: another process took it while the store was away.
        """
        ...

    def alone(self, identity: UUID) -> AbstractContextManager[None]:
        """Wait until nobody else is at work on something; others wait until the block ends."""
        ...

    def claimed_runs(self) -> frozenset[UUID]:
        """The runs that some process has; one that is `RUNNING` and not among them was killed."""
        ...

    def add_problems(self, problems: Sequence[Problem]) -> None:
        """Add problems that are not there yet."""
        ...

    def add_manifest(self, run_id: UUID, split: Phase, problems: Sequence[Problem]) -> None:
        """Write down which problems a run draws from, in their order; a repeat changes nothing."""
        ...

    def add_policy_version(self, policy: PolicyVersion) -> None:
        """Add a policy version."""
        ...

    def policies(self, run_id: UUID) -> tuple[PolicyVersion, ...]:
        """All policy versions of a run, by step and agent."""
        ...

    def policy_version(self, run_id: UUID, agent: str, step: int) -> PolicyVersion | None:
        """One policy version, or None before it exists."""
        ...

    def open_episode(self, episode: Episode) -> Episode:
        """Add an episode, or return it with what was recorded before a crash."""
        ...

    def record_turn(self, episode: Episode, turn: Turn) -> None:
        """Add one turn: its action and what its code did."""
        ...

    def close_episode(self, episode: Episode) -> None:
        """Write the stop reason and the outcome of a finished episode."""
        ...

    def episode(self, id_or_prefix: str) -> Episode:
        """One episode with all its turns.

        Raises:
            NotFound: None matches, or several do.
        """
        ...

    def add_scores(self, entries: Sequence[ScoreEntry]) -> None:
        """Add scores; a repeat of an id changes nothing.

        A training score takes the place of an unscored one, which stays as a row that did not
        train; a second real training score is refused.
        """
        ...

    def coach_spending(self, run_id: UUID) -> Spending:
        """What models that coach a run have taken so far, scores that did not train included."""
        ...

    def coach_costs(self, run_id: UUID) -> Mapping[int, float]:
        """Dollars that the coaches took for each training iteration; none where they are free."""
        ...

    def scores(self, episode_id: UUID) -> tuple[ScoreEntry, ...]:
        """All scores of an episode's actions, in turn order."""
        ...

    def episode_summaries(self, run_id: UUID) -> tuple[EpisodeSummary, ...]:
        """Every closed episode of a run in a line, by phase, iteration, problem and rollout."""
        ...

    def learnt(self, episode_id: UUID) -> Mapping[UUID, tuple[Update, UpdateEntry]]:
        """What became of each of an episode's actions that an update looked at.

        The updates come without their other entries.
        """
        ...

    def scored_actions(self, run_id: UUID, agent: str, iteration: int) -> tuple[ScoredAction, ...]:
        """One agent's actions of one training iteration, in a fixed order.

        Failed episodes are left out; unscored actions come with `score=None`.
        """
        ...

    def score_ids(self, action_ids: Sequence[UUID]) -> Mapping[UUID, UUID]:
        """The training score's id for each action that has one."""
        ...

    def add_update(self, update: Update, policy: PolicyVersion, checkpoint: Checkpoint) -> None:
        """Add an update, its entries, the new policy version and its checkpoint, all or none."""
        ...

    def update(self, run_id: UUID, agent: str, iteration: int) -> Update | None:
        """One update, or None before it happened."""
        ...

    def checkpoints(self, run_id: UUID) -> tuple[tuple[PolicyVersion, Checkpoint], ...]:
        """All checkpoints of a run, oldest first."""
        ...

    def lent(self, run_id: UUID) -> frozenset[str]:
        """Where weights of a run lie that policies of other runs, its forks, are as well."""
        ...

    def set_model_version(self, checkpoint_id: UUID, registered_model: str, version: str) -> bool:
        """Link a checkpoint to its MLflow model version; False where it was."""
        ...

    def figures(self, run_id: UUID, phase: Phase, iteration: int) -> IterationFigures:
        """One iteration's numbers, from the rows."""
        ...

    def held_out_episodes(self, run_id: UUID, step: int) -> tuple[HeldOutEpisode, ...]:
        """The closed held-out episodes of one policy step, by problem and rollout."""
        ...

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        ...
