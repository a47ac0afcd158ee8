"""The experiment store on Postgres: every write is committed when the call returns.

This class is transactions and errors; the statements are in `writing`, `reading` and `figures`.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self
from uuid import UUID

from sqlalchemy import Connection, Engine

from mappa_core.adapters.store import (
    episode_mapping,
    figures,
    mapping,
    reading,
    schema,
    tables,
    writing,
)
from mappa_core.adapters.store.connection import boundary, connect
from mappa_core.domain.records import (
    Checkpoint,
    Episode,
    EpisodeSummary,
    IterationFigures,
    Phase,
    PolicyVersion,
    Problem,
    Run,
    RunStatus,
    ScoredAction,
    ScoreEntry,
    Turn,
    Update,
    UpdateEntry,
)


class PostgresStore:
    """Keeps the promises of `ports.Store`; safe to share between threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> Self:
        """Connect and check the schema.

        Args:
            url: Any spelling of a Postgres address.

        Raises:
            SchemaMismatch: The tables are older or newer than this version.
            StoreError: Postgres is unreachable.
        """
        store = cls(connect(url))
        try:
            with store._transaction() as connection:
                schema.check(connection)
        except BaseException:
            store.close()
            raise
        return store

    @property
    def address(self) -> str:
        """Where the store is, password included; for other adapters, never for people."""
        return self._engine.url.render_as_string(hide_password=False)

    def open_run(self, run: Run) -> None:
        """Add a run; a repeat changes nothing."""
        with self._transaction() as connection:
            writing.add(connection, tables.RUN, [mapping.run_row(run)])

    def link_run(
        self, run_id: UUID, *, prefect_flow_run_id: str | None, mlflow_run_id: str | None
    ) -> None:
        """Write down the run's ids in the other systems; None leaves a link as it is."""
        with self._transaction() as connection:
            writing.link_run(
                connection,
                run_id,
                prefect_flow_run_id=prefect_flow_run_id,
                mlflow_run_id=mlflow_run_id,
            )

    def close_run(self, run_id: UUID, status: RunStatus, error: str | None = None) -> None:
        """Set where the run stands; `RUNNING` reopens it."""
        with self._transaction() as connection:
            writing.close_run(connection, run_id, status, error)

    def run(self, name_or_id: str) -> Run:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        with self._transaction() as connection:
            return reading.run(connection, name_or_id)

    def runs(self, limit: int = 50) -> tuple[Run, ...]:
        """The latest runs, newest first."""
        with self._transaction() as connection:
            return reading.runs(connection, limit)

    def add_problems(self, problems: Sequence[Problem]) -> None:
        """Add problems that are not there yet."""
        with self._transaction() as connection:
            rows = [episode_mapping.problem_row(problem) for problem in problems]
            writing.add(connection, tables.PROBLEM, rows)

    def add_policy_version(self, policy: PolicyVersion) -> None:
        """Add a policy version."""
        with self._transaction() as connection:
            writing.add(connection, tables.POLICY_VERSION, [mapping.policy_row(policy)])

    def policy_version(self, run_id: UUID, agent: str, step: int) -> PolicyVersion | None:
        """One policy version, or None before it exists."""
        with self._transaction() as connection:
            return reading.policy_version(connection, run_id, agent, step)

    def open_episode(self, episode: Episode) -> Episode:
        """Add an episode, or return it with what was recorded before a crash."""
        with self._transaction() as connection:
            if writing.add_episode(connection, episode):
                return episode
            return reading.episode(connection, str(episode.id))

    def record_turn(self, episode: Episode, turn: Turn) -> None:
        """Add one turn: its action and what its code did."""
        with self._transaction() as connection:
            writing.add_turn(connection, episode, turn)

    def close_episode(self, episode: Episode) -> None:
        """Write the stop reason and the outcome of a finished episode; the first stays."""
        with self._transaction() as connection:
            writing.close_episode(connection, episode)

    def episode(self, id_or_prefix: str) -> Episode:
        """One episode with all its turns.

        Raises:
            NotFound: None matches, or several do.
        """
        with self._transaction() as connection:
            return reading.episode(connection, id_or_prefix)

    def add_scores(self, entries: Sequence[ScoreEntry]) -> None:
        """Add scores; a repeat of an id changes nothing, a second training score is refused."""
        with self._transaction() as connection:
            writing.add_scores(connection, entries)

    def scores(self, episode_id: UUID) -> tuple[ScoreEntry, ...]:
        """All scores of an episode's actions, in turn order."""
        with self._transaction() as connection:
            return reading.scores(connection, episode_id)

    def scored_actions(self, run_id: UUID, agent: str, iteration: int) -> tuple[ScoredAction, ...]:
        """One agent's actions of one training iteration's finished episodes, in a fixed order."""
        with self._transaction() as connection:
            return reading.scored_actions(connection, run_id, agent, iteration)

    def score_ids(self, action_ids: Sequence[UUID]) -> Mapping[UUID, UUID]:
        """The training score's id for each action that has one."""
        with self._transaction() as connection:
            return reading.score_ids(connection, action_ids)

    def add_update(self, update: Update, policy: PolicyVersion, checkpoint: Checkpoint) -> None:
        """Add an update, its entries, the new policy version and its checkpoint, all or none."""
        with self._transaction() as connection:
            writing.add_update(connection, update, policy, checkpoint)

    def update(self, run_id: UUID, agent: str, iteration: int) -> Update | None:
        """One update, or None before it happened."""
        with self._transaction() as connection:
            return reading.update(connection, run_id, agent, iteration)

    def learnt(self, episode_id: UUID) -> Mapping[UUID, tuple[Update, UpdateEntry]]:
        """What became of each of an episode's actions that an update looked at.

        The updates come without their other entries.
        """
        with self._transaction() as connection:
            return reading.learnt(connection, episode_id)

    def checkpoints(self, run_id: UUID) -> tuple[tuple[PolicyVersion, Checkpoint], ...]:
        """All checkpoints of a run, oldest first."""
        with self._transaction() as connection:
            return reading.checkpoints(connection, run_id)

    def set_model_version(self, checkpoint_id: UUID, registered_model: str, version: str) -> None:
        """Link a checkpoint to its MLflow model version.

        Raises:
            NotFound: There is no such checkpoint.
        """
        with self._transaction() as connection:
            writing.set_model_version(connection, checkpoint_id, registered_model, version)

    def figures(self, run_id: UUID, phase: Phase, iteration: int) -> IterationFigures:
        """One iteration's numbers, from the rows."""
        with self._transaction() as connection:
            return figures.iteration_figures(connection, run_id, phase, iteration)

    def outcomes(
        self, run_id: UUID, phase: Phase, iteration: int
    ) -> Mapping[UUID, tuple[bool, ...]]:
        """Success of each problem's episodes in rollout order; a failed episode is a failure."""
        with self._transaction() as connection:
            return figures.outcomes(connection, run_id, phase, iteration)

    def episode_summaries(self, run_id: UUID) -> tuple[EpisodeSummary, ...]:
        """Every closed episode of a run in a line, by phase, iteration, problem and rollout."""
        with self._transaction() as connection:
            return figures.episode_summaries(connection, run_id)

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        self._engine.dispose()

    @contextmanager
    def _transaction(self) -> Generator[Connection]:
        with boundary(self._engine.url), self._engine.begin() as connection:
            yield connection
