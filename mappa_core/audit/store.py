"""What audits write down: findings, anchors and their scores, people's labels, corrections."""

from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Connection, Table, delete
from sqlalchemy.dialects import postgresql

from mappa_core.audit.reader import AuditReader
from mappa_core.audit.records import (
    Anchor,
    AnchorScore,
    CorrectedScore,
    Correction,
    Exam,
    ExperimentScore,
    Finding,
    HumanLabel,
)
from mappa_core.store import tables
from mappa_core.store.database import transaction
from mappa_core.store.insert import insert
from mappa_core.store.mapping import row_of

AuditRecord: TypeAlias = Finding | Anchor | AnchorScore | Correction | CorrectedScore | Exam
_TABLES = {
    Finding: tables.AUDIT_FINDING,
    Anchor: tables.ANCHOR,
    AnchorScore: tables.ANCHOR_SCORE,
    Correction: tables.CORRECTION,
    CorrectedScore: tables.CORRECTED_SCORE,
    Exam: tables.COACH_EXAM,
}


class AuditStore(AuditReader):
    """Reads what audits look at and writes what they find; safe to share between threads.

    All methods raise `StoreError` where Postgres is unreachable, refuses or is full.
    """

    @transaction
    def add_labels(self, connection: Connection, labels: Sequence[HumanLabel]) -> None:
        """Add people's scores; a labeller's later score of an action replaces the earlier."""
        _replace(connection, tables.HUMAN_LABEL, labels)

    @transaction
    def add_experiment(self, connection: Connection, scores: Sequence[ExperimentScore]) -> None:
        """Add scorings of an experiment; a later one of the same question replaces the earlier."""
        _replace(connection, tables.EXPERIMENT_SCORE, scores)

    @transaction
    def save_findings(
        self, connection: Connection, run_id: UUID, kinds: Sequence[str], found: Sequence[Finding]
    ) -> None:
        """Replace the run's findings of these kinds, all or none."""
        columns = tables.AUDIT_FINDING.c
        connection.execute(
            delete(tables.AUDIT_FINDING).where(columns.run_id == run_id, columns.kind.in_(kinds))
        )
        _add(connection, found)

    @transaction
    def add(self, connection: Connection, records: Sequence[AuditRecord]) -> None:
        """Add records of one kind that are not there yet."""
        _add(connection, records)


def _replace(connection: Connection, table: Table, records: Sequence[object]) -> None:
    """Add records, each in the place of one with its key."""
    if not records:
        return
    rows = [row_of(table, record) for record in records]
    keys = [column.name for column in table.primary_key]
    new = postgresql.insert(table)
    changed = {name: new.excluded[name] for name in rows[0] if name not in keys}
    connection.execute(new.on_conflict_do_update(index_elements=keys, set_=changed), rows)


def _add(connection: Connection, records: Sequence[AuditRecord]) -> None:
    if records:
        table = _TABLES[type(records[0])]
        insert(connection, {table: [row_of(table, record) for record in records]})
