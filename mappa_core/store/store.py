"""The experiment store on Postgres: every write is committed when the call returns.

This class is transactions, errors and outages; the statements are in `writing`, `reading` and
`figures`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, text

from mappa_core.core.outage import OutageRetry
from mappa_core.core.records.episodes import Episode, Phase, PolicyVersion, Problem, Turn
from mappa_core.core.records.runs import (
    EpisodeSummary,
    ExportedAction,
    HeldOutEpisode,
    IterationFigures,
    Run,
    RunStatus,
)
from mappa_core.core.records.scores import ScoredAction, ScoreEntry, Spending
from mappa_core.core.records.updates import Checkpoint, Update, UpdateEntry
from mappa_core.store import (
    archive,
    episode_mapping,
    exporting,
    figures,
    mapping,
    reading,
    schema,
    tables,
    writing,
)
from mappa_core.store.archive import Manifest
from mappa_core.store.claims import Claim, alone, claimed
from mappa_core.store.connection import boundary, connect
from mappa_core.store.group_commit import GroupCommit
from mappa_core.store.rows import Rows, episode_rows, merged, score_rows, turn_rows, update_rows

T = TypeVar("T")


class PostgresStore:
    """Keeps the promises of `ports.Store`; safe to share between threads."""

    def __init__(self, engine: Engine, outage_retry: OutageRetry) -> None:
        self._engine = engine
        self._outage_retry = outage_retry
        self._group = GroupCommit(self._add)
        self._claims = tuple[Claim, ...]()

    @classmethod
    def open(cls, url: str, outage_retry: OutageRetry | None = None) -> Self:
        """Connect and check the schema.

        Args:
            url: Any spelling of a Postgres address.
            outage_retry: For when Postgres goes away later; now it must be there. None has none.

        Raises:
            SchemaMismatch: The tables are older or newer than this version.
            StoreUnreachable: Postgres does not answer.
        """
        engine = connect(url)
        try:
            with boundary(engine.url), engine.begin() as connection:
                schema.check(connection)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine, outage_retry or OutageRetry())

    @property
    def address(self) -> str:
        """Where the store is, password included; for other adapters, never for people."""
        return self._engine.url.render_as_string(hide_password=False)

    @property
    def outage_retry(self) -> OutageRetry:
        """For who opens the same database beside it."""
        return self._outage_retry

    def open_run(self, run: Run) -> None:
        """Add a run; a repeat changes nothing."""
        self._add({tables.RUN: [mapping.run_row(run)]})

    def link_run(
        self, run_id: UUID, *, prefect_flow_run_id: str | None, mlflow_run_id: str | None
    ) -> None:
        """Write down the run's ids in the other systems; None leaves a link as it is."""
        links = {"prefect_flow_run_id": prefect_flow_run_id, "mlflow_run_id": mlflow_run_id}
        self._do(lambda connection: writing.link_run(connection, run_id, **links))

    def close_run(self, run_id: UUID, status: RunStatus, error: str | None = None) -> None:
        """Set where the run stands; `RUNNING` reopens it."""
        self._do(lambda connection: writing.close_run(connection, run_id, status, error))

    def run(self, name_or_id: str) -> Run:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        return self._do(lambda connection: reading.run(connection, name_or_id))

    def runs(self, limit: int = 50) -> tuple[Run, ...]:
        """The latest runs, newest first."""
        return self._do(lambda connection: reading.runs(connection, limit))

    def claim_run(self, run_id: UUID) -> Claim:
        """Have a run to oneself until the block, or this process, ends.

        Raises:
            RunBusy: Another process has it. Later, from everything this store is asked for inside
                the block: another process took it while Postgres was away.
        """
        claim = Claim(self._engine, run_id)
        self._claims = (*(earlier for earlier in self._claims if not earlier.over), claim)
        return claim

    def alone(self, identity: UUID) -> AbstractContextManager[None]:
        """Wait until nobody else is at work on something; others wait until the block ends."""
        return alone(self._engine, identity)

    def claimed_runs(self) -> frozenset[UUID]:
        """The runs that some process has."""
        return self._do(claimed)

    def add_problems(self, problems: Sequence[Problem]) -> None:
        """Add problems that are not there yet."""
        self._add({tables.PROBLEM: [episode_mapping.problem_row(problem) for problem in problems]})

    def add_manifest(self, run_id: UUID, split: Phase, problems: Sequence[Problem]) -> None:
        """Write down which problems a run draws from, in their order; a repeat changes nothing."""
        self.add_problems(problems)
        self._add({tables.RUN_PROBLEM: mapping.manifest_rows(run_id, split, problems)})

    def add_policy_version(self, policy: PolicyVersion) -> None:
        """Add a policy version."""
        self._add({tables.POLICY_VERSION: [mapping.policy_row(policy)]})

    def policies(self, run_id: UUID) -> tuple[PolicyVersion, ...]:
        """All policy versions of a run, by step and agent."""
        return self._do(lambda connection: reading.policies(connection, run_id))

    def policy_version(self, run_id: UUID, agent: str, step: int) -> PolicyVersion | None:
        """One policy version, or None before it exists."""
        return self._do(lambda connection: reading.policy_version(connection, run_id, agent, step))

    def open_episode(self, episode: Episode) -> Episode:
        """Add an episode, or return it with what was recorded before a crash."""
        return self._do(lambda connection: _opened(connection, episode))

    def record_turn(self, episode: Episode, turn: Turn) -> None:
        """Add one turn: its action and what its code did."""
        self._group.write(turn_rows(episode, turn))

    def close_episode(self, episode: Episode) -> None:
        """Write the stop reason and the outcome of a finished episode; the first stays."""
        self._do(lambda connection: writing.close_episode(connection, episode))

    def add_episodes(self, episodes: Sequence[Episode], scores: Sequence[ScoreEntry]) -> None:
        """Add finished episodes whole, with their scores, in one transaction."""
        self._add(merged([*map(episode_rows, episodes), score_rows(scores)]))

    def episode(self, id_or_prefix: str) -> Episode:
        """One episode with all its turns.

        Raises:
            NotFound: None matches, or several do.
        """
        return self._do(lambda connection: reading.episode(connection, id_or_prefix))

    def add_scores(self, entries: Sequence[ScoreEntry]) -> None:
        """Add scores; a repeat of an id changes nothing.

        A training score takes the place of an unscored one, which stays as a row that did not
        train; a second real training score is refused.
        """
        self._do(lambda connection: writing.add_scores(connection, entries))

    def scores(self, episode_id: UUID) -> tuple[ScoreEntry, ...]:
        """All scores of an episode's actions, in turn order."""
        return self._do(lambda connection: reading.scores(connection, episode_id))

    def coach_spending(self, run_id: UUID) -> Spending:
        """What models that coach a run have taken so far."""
        return self._do(lambda connection: figures.coach_spending(connection, run_id))

    def coach_costs(self, run_id: UUID) -> Mapping[int, float]:
        """Dollars that the coaches took for each training iteration; none where they are free."""
        return self._do(lambda connection: figures.coach_costs(connection, run_id))

    def scored_actions(self, run_id: UUID, agent: str, iteration: int) -> tuple[ScoredAction, ...]:
        """One agent's actions of one training iteration's finished episodes, in a fixed order."""
        return self._do(
            lambda connection: reading.scored_actions(connection, run_id, agent, iteration)
        )

    def score_ids(self, action_ids: Sequence[UUID]) -> Mapping[UUID, UUID]:
        """The training score's id for each action that has one."""
        return self._do(lambda connection: reading.score_ids(connection, action_ids))

    def add_update(self, update: Update, policy: PolicyVersion, checkpoint: Checkpoint) -> None:
        """Add an update, its entries, the new policy version and its checkpoint, all or none."""
        self._add(update_rows(update, policy, checkpoint))

    def update(self, run_id: UUID, agent: str, iteration: int) -> Update | None:
        """One update, or None before it happened."""
        return self._do(lambda connection: reading.update(connection, run_id, agent, iteration))

    def learnt(self, episode_id: UUID) -> Mapping[UUID, tuple[Update, UpdateEntry]]:
        """What became of each of an episode's actions that an update looked at.

        The updates come without their other entries.
        """
        return self._do(lambda connection: reading.learnt(connection, episode_id))

    def checkpoints(self, run_id: UUID) -> tuple[tuple[PolicyVersion, Checkpoint], ...]:
        """All checkpoints of a run, oldest first."""
        return self._do(lambda connection: reading.checkpoints(connection, run_id))

    def lent(self, run_id: UUID) -> frozenset[str]:
        """Where weights of a run lie that policies of other runs, its forks, are as well."""
        return self._do(lambda connection: reading.lent(connection, run_id))

    def set_model_version(self, checkpoint_id: UUID, registered_model: str, version: str) -> bool:
        """Link a checkpoint to its MLflow model version; False where it was.

        Raises:
            NotFound: There is no such checkpoint.
        """
        return self._do(
            lambda connection: writing.set_model_version(
                connection, checkpoint_id, registered_model, version
            )
        )

    def figures(self, run_id: UUID, phase: Phase, iteration: int) -> IterationFigures:
        """One iteration's numbers, from the rows."""
        return self._do(
            lambda connection: figures.iteration_figures(connection, run_id, phase, iteration)
        )

    def held_out_episodes(self, run_id: UUID, step: int) -> tuple[HeldOutEpisode, ...]:
        """The closed held-out episodes of one policy step, by problem and rollout."""
        return self._do(lambda connection: figures.held_out_episodes(connection, run_id, step))

    def episode_summaries(self, run_id: UUID) -> tuple[EpisodeSummary, ...]:
        """Every closed episode of a run in a line, by phase, iteration, problem and rollout."""
        return self._do(lambda connection: figures.episode_summaries(connection, run_id))

    def export(self, run: Run, folder: Path, write: Callable[[Iterator[ExportedAction]], T]) -> T:
        """Write a run's rows into `folder` (see `archive`) and its actions by `write`.

        Both see one state of the database, and nothing is held in memory.
        """

        def exported(connection: Connection) -> T:
            connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
            archive.dump(connection, run.id, run.name, folder)
            return write(exporting.exported_actions(connection, run.id))

        return self._do(exported)

    def import_run(self, folder: Path) -> Manifest:
        """Add the run of an export; a repeat changes nothing, and what fails leaves nothing.

        Raises:
            ArchiveError: It is damaged, of another version, or does not fit the database.
        """
        return self._do(lambda connection: archive.load(connection, folder))

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        self._engine.dispose()

    def _add(self, rows: Rows) -> None:
        self._do(lambda connection: writing.add(connection, rows))

    def _do(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`, committed; repeated where Postgres went away meanwhile."""

        def transaction() -> T:
            for claim in self._claims:
                claim.check()
            with boundary(self._engine.url), self._engine.begin() as connection:
                return work(connection)

        return self._outage_retry.run(transaction)


def _opened(connection: Connection, episode: Episode) -> Episode:
    if writing.add_episode(connection, episode):
        return episode
    return reading.episode(connection, str(episode.id))
