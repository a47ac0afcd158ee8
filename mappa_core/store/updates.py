"""Updates: what one agent learned from one iteration, and what of it each action was."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from sqlalchemy import Connection, select

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import Checkpoint, Update, UpdateEntry
from mappa_core.store.database import Repository, transaction
from mappa_core.store.insert import insert
from mappa_core.store.mapping import record_of, row_of
from mappa_core.store.tables import ACTION, CHECKPOINT, POLICY_VERSION, UPDATE, UPDATE_ACTION


class Updates(Repository):
    """Reads and writes updates."""

    @transaction
    def add_update(
        self, connection: Connection, update: Update, policy: PolicyVersion, checkpoint: Checkpoint
    ) -> None:
        """Add an update, its entries, the new policy version and its checkpoint, all or none."""
        entries = [
            row_of(UPDATE_ACTION, entry, update_id=update.id, position=position)
            for position, entry in enumerate(update.entries)
        ]
        rows = {
            POLICY_VERSION: [row_of(POLICY_VERSION, policy)],
            CHECKPOINT: [row_of(CHECKPOINT, checkpoint)],
            UPDATE: [row_of(UPDATE, update)],
            UPDATE_ACTION: entries,
        }
        insert(connection, rows)

    @transaction
    def get_update(
        self, connection: Connection, run_id: UUID, agent: str, iteration: int
    ) -> Update | None:
        """One update with its entries, or None before it happened."""
        query = select(UPDATE).filter_by(run_id=run_id, agent=agent, iteration=iteration)
        row = connection.execute(query).mappings().one_or_none()
        if row is None:
            return None
        looked_at = select(UPDATE_ACTION).filter_by(update_id=row["id"]).order_by("position")
        rows = connection.execute(looked_at).mappings()
        entries = tuple(record_of(UpdateEntry, entry) for entry in rows)
        return record_of(Update, row, entries=entries)

    @transaction
    def list_metrics(
        self, connection: Connection, run_id: UUID
    ) -> Sequence[tuple[str, int, Mapping[str, float]]]:
        """Agent, iteration and metrics of every update of a run, in their order."""
        query = (
            select(UPDATE.c.agent, UPDATE.c.iteration, UPDATE.c.metrics)
            .where(UPDATE.c.run_id == run_id)
            .order_by(UPDATE.c.agent, UPDATE.c.iteration)
        )
        return connection.execute(query).tuples().all()

    @transaction
    def updates_of_episode(
        self, connection: Connection, episode_id: UUID
    ) -> Mapping[UUID, tuple[Update, UpdateEntry]]:
        """What became of each of an episode's actions that an update looked at.

        The updates come without their other entries.
        """
        query = (
            select(UPDATE, UPDATE_ACTION)
            .select_from(UPDATE_ACTION)
            .join(UPDATE)
            .join(ACTION, ACTION.c.id == UPDATE_ACTION.c.action_id)
            .where(ACTION.c.episode_id == episode_id)
        )
        return {
            row["action_id"]: (record_of(Update, row, entries=()), record_of(UpdateEntry, row))
            for row in connection.execute(query).mappings()
        }
