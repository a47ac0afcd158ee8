"""The audit's side of the store: its frame from the `audit` views alone, and what it writes.

Reading needs nothing but the views, so it works as `mappa_auditor` and on a restored dump. A
million rows come through COPY as CSV and become columns without passing through Python objects.
"""

# ruff: noqa: S608 (the words are ours; values are bound)

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, Self, TypeVar
from uuid import UUID

import numpy as np
from sqlalchemy import (
    Connection,
    Engine,
    Executable,
    RowMapping,
    Table,
    Text,
    cast,
    delete,
    or_,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import insert

from mappa_core.audit import queries as audit_queries
from mappa_core.audit.columns import ArrowTable, copied, factor, flags, floats, frame, integers
from mappa_core.audit.frame import Factor, Frame, LabelledScores, Ratings
from mappa_core.audit.records import (
    Anchor,
    AnchorScore,
    AuditedRun,
    Candidate,
    CorrectedScore,
    Correction,
    CorrectionTerm,
    Finding,
    HumanLabel,
    ToLabel,
)
from mappa_core.core.errors import NotFound
from mappa_core.core.outage import OutageRetry
from mappa_core.store import tables
from mappa_core.store.connection import boundary, connect

T = TypeVar("T")


class AuditStore:
    """Reads what audits look at, and writes what they find; safe to share between threads.

    All methods raise `StoreError` where Postgres is unreachable, refuses or is full.
    """

    def __init__(self, engine: Engine, outage_retry: OutageRetry) -> None:
        self._engine = engine
        self._outage_retry = outage_retry

    @classmethod
    def open(cls, url: str, outage_retry: OutageRetry | None = None) -> Self:
        """Connect; what the database holds is found out when it is asked.

        Args:
            url: Any spelling of a Postgres address.
            outage_retry: For when Postgres goes away. None has none.

        Raises:
            StoreError: `url` is not the address of a Postgres.
        """
        return cls(connect(url, pool_size=2), outage_retry or OutageRetry())

    def run(self, name_or_id: str) -> AuditedRun:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        query = text(
            "SELECT run_id AS id, run AS name, team, baseline FROM audit.runs "
            "WHERE run = :asked OR run_id::text = :asked "
            "OR starts_with(run, :asked) OR starts_with(run_id::text, :asked) "
            "ORDER BY (run = :asked OR run_id::text = :asked) DESC LIMIT 2"
        )
        rows = self._rows(query, {"asked": name_or_id})
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

    def _frame_columns(self, run_id: UUID, iteration: int | None) -> ArrowTable:
        only = "" if iteration is None else f"AND iteration = {int(iteration)}"
        return self._copied(audit_queries.FRAME.format(run=run_id, only=only))

    def ratings(self, run_id: UUID) -> Ratings:
        """Every score of the run's actions that have several."""
        # Most runs have none, and finding that out is cheap.
        several = self._any("audit.action_scores WHERE run_id = :run AND NOT trained", run_id)
        table = self._copied(
            audit_queries.OPINIONS.format(run=run_id) + ("" if several else "LIMIT 0")
        )
        words = [
            table[name].to_pylist()
            for name in ("coach", "coach_model", "coach_model_version", "rubric_version")
        ]
        scorers = [f"{c} {m} {v}, rubric {r}" for c, m, v, r in zip(*words, strict=True)]
        return Ratings(
            action=factor(table, "action_id"),
            scorer=Factor.of(scorers),
            repeat=integers(table, "repeat_index"),
            trained=flags(table, "trained").astype(np.int64),
            score=floats(table, "score"),
            problem=factor(table, "problem_id"),
        )

    def labelled(self, run_id: UUID) -> LabelledScores:
        """People's labels beside the coach's scores; nothing where there are no labels."""
        if not self._any("audit.human_labels WHERE run_id = :run", run_id):
            nothing = np.zeros(0)
            return LabelledScores(scores=nothing, labels=nothing, at_random=nothing.astype(bool))
        query = text(
            "SELECT s.score, l.label, l.at_random FROM ("
            "SELECT action_id, score FROM audit.action_scores WHERE run_id = :run AND trained "
            "AND phase = 'train' AND score IS NOT NULL) s LEFT JOIN ("
            "SELECT action_id, avg(label_score) AS label, bool_or(picked = 'random') AS at_random "
            "FROM audit.human_labels WHERE run_id = :run GROUP BY action_id) l USING (action_id) "
            "ORDER BY action_id"
        )
        rows = self._rows(query, {"run": run_id})
        scores = np.array([row["score"] for row in rows], dtype=np.float64)
        labels = np.array(
            [np.nan if row["label"] is None else row["label"] for row in rows], dtype=np.float64
        )
        at_random = np.array([row["at_random"] is True for row in rows], dtype=bool)
        return LabelledScores(scores=scores, labels=labels, at_random=at_random)

    def to_label(self, run_id: UUID, limit: int) -> ToLabel:
        """What a person could look at, each list in an order that never changes by itself."""
        several = self._any("audit.action_scores WHERE run_id = :run AND NOT trained", run_id)

        def asked(query: str) -> tuple[Candidate, ...]:
            rows = self._rows(text(query), {"run": run_id, "limit": limit})
            return tuple(Candidate(**row) for row in rows)

        return ToLabel(
            contested=asked(audit_queries.CONTESTED) if several else (),
            unsure=asked(audit_queries.UNSURE),
            at_random=asked(audit_queries.AT_RANDOM),
        )

    def labels(self, run_id: UUID, labeller: str) -> tuple[HumanLabel, ...]:
        """One person's labels of a run, oldest first."""
        query = text(
            "SELECT action_id, labeller, label_score AS score, note, picked "
            "FROM audit.human_labels WHERE run_id = :run AND labeller = :labeller "
            "ORDER BY labelled_at, action_id"
        )
        return tuple(
            HumanLabel(**row) for row in self._rows(query, {"run": run_id, "labeller": labeller})
        )

    def add_labels(self, labels: Sequence[HumanLabel]) -> None:
        """Add people's scores; a labeller's later score of an action replaces the earlier."""
        self._replace(tables.HUMAN_LABEL, [asdict(label) for label in labels])

    def save_findings(self, run_id: UUID, kinds: Sequence[str], found: Sequence[Finding]) -> None:
        """Replace the run's findings of these kinds, all or none."""
        columns = tables.AUDIT_FINDING.c
        earlier = delete(tables.AUDIT_FINDING).where(
            columns.run_id == run_id, columns.kind.in_(kinds)
        )

        def replace(connection: Connection) -> None:
            connection.execute(earlier)
            if found:
                rows = [_finding_row(finding) for finding in found]
                connection.execute(insert(tables.AUDIT_FINDING), rows)

        self._write(replace)

    def add_findings(self, found: Sequence[Finding]) -> None:
        """Add findings that are not there yet."""
        self._add(tables.AUDIT_FINDING, [_finding_row(finding) for finding in found])

    def findings(self, run_id: UUID, kind: str | None = None) -> tuple[Finding, ...]:
        """What was found about a run, of one kind or of all, in the order it was found."""
        names = ", ".join(field.name for field in fields(Finding) if field.name != "id")
        only = "" if kind is None else "AND kind = :kind"
        query = text(
            f"SELECT finding_id AS id, {names} FROM audit.findings "
            f"WHERE run_id = :run {only} ORDER BY found_at, iteration, finding_id"
        ).columns(**{column.name: column.type for column in tables.AUDIT_FINDING.c})
        return tuple(Finding(**row) for row in self._rows(query, {"run": run_id, "kind": kind}))

    def add_anchors(self, anchors: Sequence[Anchor]) -> None:
        """Add anchors that are not there yet."""
        columns = tables.ANCHOR.c.keys()
        rows = [{name: asdict(anchor)[name] for name in columns} for anchor in anchors]
        self._add(tables.ANCHOR, rows)

    def candidates(self, run_id: UUID, iteration: int) -> tuple[Candidate, ...]:
        """The scored actions of one training iteration, in a fixed order."""
        query = text(
            "SELECT action_id, episode_id, turn_index, agent, task_type FROM audit.action_scores "
            "WHERE run_id = :run AND iteration = :iteration AND phase = 'train' AND trained "
            "AND score IS NOT NULL ORDER BY action_id"
        )
        return tuple(
            Candidate(**row) for row in self._rows(query, {"run": run_id, "iteration": iteration})
        )

    def anchors(self, run_id: UUID) -> tuple[Anchor, ...]:
        """A run's anchors, in a fixed order."""
        query = text(
            "SELECT anchor_id AS id, run_id, action_id, episode_id, turn_index, known_score "
            "FROM audit.anchors WHERE run_id = :run ORDER BY anchor_id"
        )
        return tuple(Anchor(**row) for row in self._rows(query, {"run": run_id}))

    def add_anchor_scores(self, scores: Sequence[AnchorScore]) -> None:
        """Add scores of anchors that are not there yet."""
        self._add(tables.ANCHOR_SCORE, [asdict(score) for score in scores])

    def anchor_scores(self, run_id: UUID) -> tuple[AnchorScore, ...]:
        """All scores of a run's anchors, by iteration, anchor and repeat."""
        query = text(
            "SELECT anchor_id, iteration, repeat_index, score, unscored_reason, coach, "
            "model_version, rubric_sha256 FROM audit.anchor_scores WHERE run_id = :run "
            "ORDER BY iteration, anchor_id, repeat_index"
        )
        return tuple(AnchorScore(**row) for row in self._rows(query, {"run": run_id}))

    def trainer(self, run_id: UUID) -> tuple[str, str]:
        """The coach and the hash of the rubric behind most of a run's training scores.

        Raises:
            NotFound: Nothing was scored.
        """
        query = text(
            "SELECT coach, rubric_sha256 FROM audit.action_scores WHERE run_id = :run AND trained "
            "GROUP BY coach, rubric_sha256 ORDER BY count(*) DESC LIMIT 1"
        )
        rows = self._rows(query, {"run": run_id})
        if not rows:
            raise NotFound(f"run {run_id} has no scored training actions yet: nothing to correct")
        return rows[0]["coach"], rows[0]["rubric_sha256"]

    def add_correction(self, correction: Correction) -> None:
        """Add a correction; a repeat changes nothing."""
        self._add(tables.CORRECTION, [asdict(correction)])

    def correction(self, id_or_run: str) -> Correction:
        """A correction by its id, or the latest one estimated on a run.

        Raises:
            NotFound: There is none.
        """
        columns = tables.CORRECTION.c
        names = select(tables.RUN.c.id).where(tables.RUN.c.name == id_or_run)
        query = select(*(column for column in columns if column.name != "made_at"))
        query = query.where(or_(cast(columns.id, Text) == id_or_run, columns.run_id.in_(names)))
        rows = self._rows(query.order_by(columns.made_at.desc()).limit(1))
        if not rows:
            raise NotFound(f"no correction {id_or_run}: make one with `mappa audit RUN --debias`")
        fields: dict[str, Any] = {
            **rows[0],
            "terms": tuple(CorrectionTerm(**term) for term in rows[0]["terms"]),
        }
        return Correction(**fields)

    def add_corrected(self, scores: Sequence[CorrectedScore]) -> None:
        """Write down what a correction made of scores; a repeat changes nothing."""
        self._add(tables.CORRECTED_SCORE, [asdict(score) for score in scores])

    def close(self) -> None:
        """Give connections back; safe to call twice."""
        self._engine.dispose()

    def _add(self, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            statement = insert(table).on_conflict_do_nothing()
            self._write(lambda connection: connection.execute(statement, list(rows)))

    def _replace(self, table: Table, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        keys = [column.name for column in table.primary_key]
        new = insert(table)
        changed = {name: new.excluded[name] for name in rows[0] if name not in keys}
        statement = new.on_conflict_do_update(index_elements=keys, set_=changed)
        self._write(lambda connection: connection.execute(statement, list(rows)))

    def _any(self, rows: str, run_id: UUID) -> bool:
        (row,) = self._rows(text(f"SELECT EXISTS (SELECT FROM {rows}) AS any"), {"run": run_id})
        return bool(row["any"])

    def _rows(
        self, query: Executable, values: Mapping[str, object] | None = None
    ) -> Sequence[RowMapping]:
        return self._read(lambda connection: connection.execute(query, values).mappings().all())

    def _copied(self, query: str) -> ArrowTable:
        return self._read(lambda connection: copied(connection, query))

    def _read(self, work: Callable[[Connection], T]) -> T:
        def read(connection: Connection) -> T:
            connection.execute(text("SET TRANSACTION READ ONLY"))
            return work(connection)

        return self._write(read)

    def _write(self, work: Callable[[Connection], T]) -> T:
        """The result of `work`, committed; repeated where Postgres went away meanwhile."""

        def transaction() -> T:
            with boundary(self._engine.url), self._engine.begin() as connection:
                return work(connection)

        return self._outage_retry.run(transaction)


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "detail": dict(finding.detail)}
