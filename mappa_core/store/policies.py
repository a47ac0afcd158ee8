"""Policy versions: the weights of each agent after each update, and where they lie."""

from uuid import UUID

from sqlalchemy import Connection, select, update

from mappa_core.core.errors import NotFound
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import Checkpoint
from mappa_core.store.database import Repository, transaction
from mappa_core.store.insert import insert
from mappa_core.store.mapping import record_of, records_of, row_of
from mappa_core.store.tables import CHECKPOINT, POLICY_VERSION


class Policies(Repository):
    """Reads and writes policy versions and their checkpoints."""

    @transaction
    def add_policy_version(self, connection: Connection, policy: PolicyVersion) -> None:
        """Add a policy version."""
        insert(connection, {POLICY_VERSION: [row_of(POLICY_VERSION, policy)]})

    @transaction
    def list_policy_versions(
        self, connection: Connection, run_id: UUID
    ) -> tuple[PolicyVersion, ...]:
        """All policy versions of a run, by step and agent."""
        query = select(POLICY_VERSION).filter_by(run_id=run_id).order_by("step", "agent")
        return records_of(PolicyVersion, connection.execute(query))

    @transaction
    def get_policy_version(
        self, connection: Connection, run_id: UUID, agent: str, step: int
    ) -> PolicyVersion | None:
        """One policy version, or None before it exists."""
        query = select(POLICY_VERSION).filter_by(run_id=run_id, agent=agent, step=step)
        row = connection.execute(query).mappings().one_or_none()
        return None if row is None else record_of(PolicyVersion, row)

    @transaction
    def list_checkpoints(
        self, connection: Connection, run_id: UUID
    ) -> tuple[tuple[PolicyVersion, Checkpoint], ...]:
        """All checkpoints of a run with their policy versions, oldest first."""
        query = (
            select(POLICY_VERSION, CHECKPOINT)
            .join(CHECKPOINT)
            .where(POLICY_VERSION.c.run_id == run_id)
            .order_by(POLICY_VERSION.c.step, POLICY_VERSION.c.agent, CHECKPOINT.c.saved_at)
        )
        return tuple(
            (
                record_of(PolicyVersion, row),
                record_of(Checkpoint, {column.name: row[column] for column in CHECKPOINT.c}),
            )
            for row in connection.execute(query).mappings()
        )

    @transaction
    def checkpoints_shared_with_forks(self, connection: Connection, run_id: UUID) -> frozenset[str]:
        """The directories of a run's weights that policies of other runs, its forks, name too."""
        own = POLICY_VERSION.alias("own")
        query = (
            select(POLICY_VERSION.c.adapter_uri)
            .join(own, own.c.adapter_uri == POLICY_VERSION.c.adapter_uri)
            .where(own.c.run_id == run_id, POLICY_VERSION.c.run_id != run_id)
        )
        return frozenset(connection.execute(query).scalars())

    @transaction
    def set_model_version(
        self, connection: Connection, checkpoint_id: UUID, registered_model: str, version: str
    ) -> bool:
        """Link a checkpoint to its registered model version; False where it was.

        Raises:
            NotFound: There is no such checkpoint.
        """
        columns = CHECKPOINT.c
        mine = columns.id == checkpoint_id
        linked = select(columns.registered_model, columns.model_version).where(mine)
        before = connection.execute(linked.with_for_update()).one_or_none()
        if before is None:
            raise NotFound(f"no checkpoint {checkpoint_id} in the store")
        if tuple(before) == (registered_model, version):
            return False
        new = {"registered_model": registered_model, "model_version": version}
        connection.execute(update(CHECKPOINT).where(mine).values(new))
        return True
