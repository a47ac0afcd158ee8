"""What audits write down: findings, anchors and their scores, people's labels, corrections."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Connection, Table, delete
from sqlalchemy.dialects import postgresql

from mappa_core.audit.reader import AuditReader
from mappa_core.audit.records import (
    Anchor,
    AnchorScore,
    CorrectedScore,
    Correction,
    Finding,
    HumanLabel,
)
from mappa_core.store import tables
from mappa_core.store.database import transaction
from mappa_core.store.insert import insert
from mappa_core.store.mapping import row_of


class AuditStore(AuditReader):
    """Reads what audits look at and writes what they find; safe to share between threads.

    All methods raise `StoreError` where Postgres is unreachable, refuses or is full.
    """

    @transaction
    def add_labels(self, connection: Connection, labels: Sequence[HumanLabel]) -> None:
        """Add people's scores; a labeller's later score of an action replaces the earlier."""
        if not labels:
            return
        table = tables.HUMAN_LABEL
        rows = [row_of(table, label) for label in labels]
        keys = [column.name for column in table.primary_key]
        new = postgresql.insert(table)
        changed = {name: new.excluded[name] for name in rows[0] if name not in keys}
        connection.execute(new.on_conflict_do_update(index_elements=keys, set_=changed), rows)

    @transaction
    def save_findings(
        self, connection: Connection, run_id: UUID, kinds: Sequence[str], found: Sequence[Finding]
    ) -> None:
        """Replace the run's findings of these kinds, all or none."""
        columns = tables.AUDIT_FINDING.c
        connection.execute(
            delete(tables.AUDIT_FINDING).where(columns.run_id == run_id, columns.kind.in_(kinds))
        )
        _add(connection, tables.AUDIT_FINDING, found)

    @transaction
    def add_findings(self, connection: Connection, found: Sequence[Finding]) -> None:
        """Add findings that are not there yet."""
        _add(connection, tables.AUDIT_FINDING, found)

    @transaction
    def add_anchors(self, connection: Connection, anchors: Sequence[Anchor]) -> None:
        """Add anchors that are not there yet."""
        _add(connection, tables.ANCHOR, anchors)

    @transaction
    def add_anchor_scores(self, connection: Connection, scores: Sequence[AnchorScore]) -> None:
        """Add scores of anchors that are not there yet."""
        _add(connection, tables.ANCHOR_SCORE, scores)

    @transaction
    def add_correction(self, connection: Connection, correction: Correction) -> None:
        """Add a correction; a repeat changes nothing."""
        _add(connection, tables.CORRECTION, [correction])

    @transaction
    def add_corrected(self, connection: Connection, scores: Sequence[CorrectedScore]) -> None:
        """Write down what a correction made of scores; a repeat changes nothing."""
        _add(connection, tables.CORRECTED_SCORE, scores)


def _add(connection: Connection, table: Table, records: Sequence[object]) -> None:
    insert(connection, {table: [row_of(table, record) for record in records]})
