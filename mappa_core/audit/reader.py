"""What audits read, from the views of the schema `audit` alone, and the SQL they read it with.

It works as `mappa_auditor` and on a restored dump. A million rows come through COPY as CSV and
become columns without passing through Python objects.
"""

# ruff: noqa: S608 (the words are ours; values are bound)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Self, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Executable, RowMapping, Text, cast, or_, select, text

from mappa_core.audit import drift_sql, sql
from mappa_core.audit.columns import ArrowTable, copied, experiment, factor, floats, frame, integers
from mappa_core.audit.experiment_sql import EXPERIMENT
from mappa_core.audit.frame import Experiment, Frame, LabelledScores, Ratings
from mappa_core.audit.picking_sql import (
    AT_RANDOM,
    CANDIDATE,
    CONTESTED,
    EVENLY,
    SCORED,
    UNSURE,
)
from mappa_core.audit.records import (
    Anchor,
    AnchorScore,
    AuditedRun,
    Candidate,
    Correction,
    Exam,
    ExperimentScore,
    Finding,
    HumanLabel,
    Picked,
    VersionCount,
)
from mappa_core.core.errors import NotFound
from mappa_core.core.outage import OutageRetry
from mappa_core.store import tables
from mappa_core.store.connection import connect
from mappa_core.store.database import Database, Repository
from mappa_core.store.mapping import record_of

T = TypeVar("T")

# Sums depend on the order of what is summed in their last digit, so rows come in one of their own,
# and a restored database gives the very figures of the old one.
_FRAME = f"""
SELECT action_id, score, unscored_reason, task_type, agent, problem_id, iteration, turn_index,
    hashtextextended(episode_id::text, 0) AS episode,
    level, sampled_tokens, tool_status, success, advantage, weight, left_out
{sql.TRAINED}"""
_SEVERAL = "audit.action_scores WHERE run_id = :run AND NOT trained"


class AuditReader(Repository):
    """Reads what audits look at; safe to share between threads.

    All methods raise `StoreError` where Postgres is unreachable or refuses.
    """

    @classmethod
    def open(cls, url: str, outage_retry: OutageRetry | None = None) -> Self:
        """Connect; what the database holds is found out when it is asked.

        Args:
            url: Any spelling of a Postgres address.
            outage_retry: For when Postgres goes away. None has none.

        Raises:
            StoreError: `url` is not the address of a Postgres.
        """
        return cls(Database(connect(url, pool_size=2), outage_retry or OutageRetry()))

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        self.database.engine.dispose()

    def run(self, name_or_id: str) -> AuditedRun:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        query = (
            "SELECT run_id AS id, run AS name, team, baseline, credit, discount "
            "FROM audit.runs "
            "WHERE run = :name OR run_id::text = :name "
            "OR starts_with(run, :name) OR starts_with(run_id::text, :name) "
            "ORDER BY (run = :name OR run_id::text = :name) DESC LIMIT 2"
        )
        rows = self._rows(query, name=name_or_id)
        exact = [row for row in rows if name_or_id in (row["name"], str(row["id"]))]
        found = exact or rows
        if len(found) != 1:
            what = "several runs begin with" if found else "no run is called"
            raise NotFound(f"{what} {name_or_id}: see `mappa runs`")
        return AuditedRun(**found[0])

    def frame(self, run_id: UUID, iteration: int | None = None) -> Frame:
        """A run's training actions with the score that trained them, in the order of their ids.

        Args:
            run_id: The run.
            iteration: Only this one's; None for all.
        """
        return frame(self._frame_columns(run_id, iteration))

    def frame_with_ids(
        self, run_id: UUID, iteration: int | None = None
    ) -> tuple[tuple[UUID, ...], Frame]:
        """The same, with the action of each row."""
        table = self._frame_columns(run_id, iteration)
        return tuple(UUID(value) for value in table["action_id"].to_pylist()), frame(table)

    def ratings(self, run_id: UUID) -> Ratings:
        """Every score of the run's actions that have several."""
        # Most runs have none, and finding that out is cheap.
        limit = "" if self._any(_SEVERAL, run_id) else "LIMIT 0"
        table = self._copied(f"{sql.SCORED_AGAIN} ORDER BY score_id {limit}", run_id)
        return Ratings(
            action=factor(table, "action_id"),
            problem=factor(table, "problem_id"),
            task_type=factor(table, "task_type"),
            agent=factor(table, "agent"),
            scorer=factor(table, "scorer"),
            repeat=integers(table, "repeat_index"),
            trained=integers(table, "trained"),
            score=floats(table, "score"),
        )

    def labelled(self, run_id: UUID) -> LabelledScores:
        """People's labels beside the coach's scores; nothing where there are no labels."""
        there = self._any("audit.human_labels WHERE run_id = :run", run_id)
        limit = "" if there else "LIMIT 0"
        table = self._copied(f"{sql.WITH_LABELS} ORDER BY action_id {limit}", run_id)
        return LabelledScores(
            scores=floats(table, "score"),
            labels=floats(table, "label"),
            problem=factor(table, "problem_id"),
            task_type=factor(table, "task_type"),
            agent=factor(table, "agent"),
            at_random=floats(table, "at_random") == 1,
            sampled=floats(table, "sampled") == 1,
        )

    def to_label(self, run_id: UUID, limit: int) -> Mapping[Picked, Sequence[Candidate]]:
        """What a person could look at, each list in an order that never changes by itself.

        Contested: their scores differ by two points or more. Unsure: of task types that the last
        audit could not tell about. Random: spread over agents and task types in proportion.
        Audit: as many of each agent and task type, which tells most about their differences.
        """
        queries: dict[Picked, str] = {
            "contested": CONTESTED,
            "unsure": UNSURE,
            "random": AT_RANDOM,
            "audit": EVENLY,
        }
        if not self._any(_SEVERAL, run_id):
            del queries["contested"]
        return {
            reason: [Candidate(**row) for row in self._rows(query, run=run_id, limit=limit)]
            for reason, query in queries.items()
        }

    def labels(self, run_id: UUID, labeller: str) -> tuple[HumanLabel, ...]:
        """One person's labels of a run, oldest first."""
        query = (
            "SELECT action_id, labeller, label_score AS score, note, picked "
            "FROM audit.human_labels WHERE run_id = :run AND labeller = :labeller "
            "ORDER BY labelled_at, action_id"
        )
        rows = self._rows(query, run=run_id, labeller=labeller)
        return tuple(HumanLabel(**row) for row in rows)

    def findings(self, run_id: UUID, kind: str | None = None) -> tuple[Finding, ...]:
        """What was found about a run, of one kind or of all, in the order it was found."""
        names = ", ".join(field.name for field in fields(Finding) if field.name != "id")
        only = "" if kind is None else "AND kind = :kind"
        query = text(
            f"SELECT finding_id AS id, {names} FROM audit.findings "
            f"WHERE run_id = :run {only} ORDER BY found_at, iteration, finding_id"
        ).columns(**{column.name: column.type for column in tables.AUDIT_FINDING.c})
        return tuple(Finding(**row) for row in self._rows(query, run=run_id, kind=kind))

    def candidates(self, run_id: UUID, iteration: int) -> tuple[Candidate, ...]:
        """The scored actions of one training iteration, in a fixed order."""
        query = (
            f"SELECT {CANDIDATE} {SCORED} AND iteration = :iteration AND trained ORDER BY action_id"
        )
        return tuple(Candidate(**row) for row in self._rows(query, run=run_id, iteration=iteration))

    def anchors(self, run_id: UUID) -> tuple[Anchor, ...]:
        """A run's anchors, in a fixed order."""
        return tuple(Anchor(**row) for row in self._rows(drift_sql.RUN_ANCHORS, run=run_id))

    def anchor_scores(self, run_id: UUID) -> tuple[AnchorScore, ...]:
        """All scores of a run's anchors, by iteration, anchor and repeat."""
        return tuple(AnchorScore(**row) for row in self._rows(drift_sql.ANCHOR_SCORES, run=run_id))

    def anchor_types(self, run_id: UUID) -> Mapping[UUID, str]:
        """The task type of the problem behind each of a run's anchors that was scored."""
        rows = self._rows(drift_sql.ANCHOR_TYPES, run=run_id)
        return {row["anchor_id"]: row["task_type"] for row in rows}

    def model_versions(self, run_id: UUID) -> tuple[VersionCount, ...]:
        """Which versions of the coach's model gave the run's training scores, by iteration."""
        rows = self._rows(drift_sql.VERSIONS_THAT_TRAINED, run=run_id)
        return tuple(VersionCount(**row) for row in rows)

    def at_random(self, run_id: UUID, limit: int) -> tuple[Candidate, ...]:
        """A random sample of scored actions, spread over agents and task types in proportion."""
        rows = self._rows(AT_RANDOM, run=run_id, limit=limit)
        return tuple(Candidate(**row) for row in rows)

    def task_types(self, run_id: UUID) -> tuple[str, ...]:
        """The kinds of problem that the run's scored actions are on, in alphabetical order."""
        query = f"SELECT DISTINCT task_type {SCORED} AND trained ORDER BY 1"
        return tuple(row["task_type"] for row in self._rows(query, run=run_id))

    def experiment(self, run_id: UUID) -> Experiment:
        """What experiments asked the coach that trained the run's actions."""
        there = self._any("audit.experiment_scores WHERE run_id = :run", run_id)
        limit = "" if there else "LIMIT 0"
        query = f"SELECT * {EXPERIMENT} ORDER BY action_id, change, put {limit}"
        return experiment(self._copied(query, run_id))

    def experiment_scores(self, run_id: UUID) -> tuple[ExperimentScore, ...]:
        """The same as rows, of whichever coaches."""
        query = (
            "SELECT action_id, change, put, coach, coach_model AS model, model_version, "
            "rubric_sha256, unseen, score, unscored_reason FROM audit.experiment_scores "
            "WHERE run_id = :run ORDER BY action_id, change, put, coach, coach_model, rubric_sha256"
        )
        return tuple(ExperimentScore(**row) for row in self._rows(query, run=run_id))

    def trainer(self, run_id: UUID) -> tuple[str, str]:
        """The coach and the hash of the rubric behind most of a run's training scores.

        Raises:
            NotFound: Nothing was scored.
        """
        query = (
            "SELECT coach, rubric_sha256 FROM audit.action_scores WHERE run_id = :run AND trained "
            "GROUP BY coach, rubric_sha256 ORDER BY count(*) DESC LIMIT 1"
        )
        rows = self._rows(query, run=run_id)
        if not rows:
            raise NotFound(f"run {run_id} has no scored training actions yet: nothing to correct")
        return rows[0]["coach"], rows[0]["rubric_sha256"]

    def correction(self, id_or_run: str) -> Correction:
        """A correction by its id, or the latest one estimated on a run.

        Raises:
            NotFound: There is none.
        """
        columns = tables.CORRECTION.c
        named = select(tables.RUN.c.id).where(tables.RUN.c.name == id_or_run)
        query = select(tables.CORRECTION).where(
            or_(cast(columns.id, Text) == id_or_run, columns.run_id.in_(named))
        )
        rows = self._rows(query.order_by(columns.made_at.desc()).limit(1))
        if not rows:
            raise NotFound(f"no correction {id_or_run}: make one with `mappa audit RUN --debias`")
        return record_of(Correction, rows[0])

    def exam(self, exam_id: UUID) -> Exam | None:
        """A coach's exam by its id; None where it has not sat it."""
        columns = tables.COACH_EXAM.c
        rows = self._rows(select(tables.COACH_EXAM).where(columns.id == exam_id))
        return record_of(Exam, rows[0]) if rows else None

    def _frame_columns(self, run_id: UUID, iteration: int | None) -> ArrowTable:
        only = "" if iteration is None else f"AND iteration = {int(iteration)}"
        return self._copied(f"{_FRAME} {only} ORDER BY action_id", run_id)

    def _any(self, rows: str, run_id: UUID) -> bool:
        (row,) = self._rows(f"SELECT EXISTS (SELECT FROM {rows}) AS any", run=run_id)
        return bool(row["any"])

    def _rows(self, query: str | Executable, **values: object) -> Sequence[RowMapping]:
        statement = text(query) if isinstance(query, str) else query
        return self._read(lambda connection: connection.execute(statement, values).mappings().all())

    def _copied(self, query: str, run_id: UUID) -> ArrowTable:
        return self._read(lambda connection: copied(connection, sql.of_run(query, run_id)))

    def _read(self, work: Callable[[Connection], T]) -> T:
        def read(connection: Connection) -> T:
            connection.execute(text("SET TRANSACTION READ ONLY"))
            return work(connection)

        return self.database.transaction(read)
