"""Runs: what is trained or measured, where it stands, and which problems it draws from."""

from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from sqlalchemy import Connection, String, cast, func, or_, select, update

from mappa_core.core.errors import NotFound
from mappa_core.core.records.episodes import Phase, Problem
from mappa_core.core.records.provenance import Provenance
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.store.claims import TAKEN, Claim
from mappa_core.store.database import Repository, transaction
from mappa_core.store.insert import insert
from mappa_core.store.lookup import find_one
from mappa_core.store.mapping import record_of, records_of, row_of
from mappa_core.store.tables import PROBLEM, RUN, RUN_PROBLEM


class Runs(Repository):
    """Reads and writes runs."""

    @transaction
    def add_run(self, connection: Connection, run: Run) -> None:
        """Add a run; a repeat changes nothing."""
        insert(connection, {RUN: [row_of(RUN, run)]})

    @transaction
    def add_manifest(
        self, connection: Connection, run_id: UUID, split: Phase, problems: Sequence[Problem]
    ) -> None:
        """Add the problems that a run draws from, in their order; a repeat changes nothing.

        A problem of an earlier version, of which nothing else is known, gets its attributes.
        """
        drawn = [
            {"run_id": run_id, "split": split, "position": position, "problem_id": problem.id}
            for position, problem in enumerate(problems)
        ]
        rows = [row_of(PROBLEM, problem) for problem in problems]
        insert(connection, {PROBLEM: rows, RUN_PROBLEM: drawn})
        for problem in sorted(problems, key=lambda problem: problem.id):
            if problem.attributes:
                connection.execute(
                    update(PROBLEM)
                    .where(PROBLEM.c.id == problem.id, PROBLEM.c.attributes == {})
                    .values(attributes=dict(problem.attributes))
                )

    @transaction
    def link_run(
        self,
        connection: Connection,
        run_id: UUID,
        *,
        prefect_flow_run_id: str | None,
        mlflow_run_id: str | None,
    ) -> None:
        """Write down the run's ids in the other systems; None leaves a link as it is."""
        columns = RUN.c
        connection.execute(
            update(RUN)
            .where(columns.id == run_id)
            .values(
                prefect_flow_run_id=func.coalesce(prefect_flow_run_id, columns.prefect_flow_run_id),
                mlflow_run_id=func.coalesce(mlflow_run_id, columns.mlflow_run_id),
            )
        )

    @transaction
    def set_status(
        self, connection: Connection, run_id: UUID, status: RunStatus, error: str | None = None
    ) -> None:
        """Set where the run stands; `RUNNING` reopens it, and any other ends it now."""
        ended_at = None if status is RunStatus.RUNNING else func.now()
        connection.execute(
            update(RUN)
            .where(RUN.c.id == run_id)
            .values(status=status.value, error=error, ended_at=ended_at)
        )

    @transaction
    def set_provenance(
        self, connection: Connection, run_id: UUID, provenance: tuple[Provenance, ...]
    ) -> None:
        """Write down what the run is made with, what it was made with before included."""
        parts = [asdict(each) for each in provenance]
        connection.execute(update(RUN).where(RUN.c.id == run_id).values(provenance=parts))

    @transaction
    def get_run(self, connection: Connection, name_or_id: str) -> Run:
        """One run by name, id or unambiguous prefix of either.

        Raises:
            NotFound: None matches, or several do.
        """
        exact = or_(RUN.c.name == name_or_id, cast(RUN.c.id, String) == name_or_id)
        prefix = or_(
            RUN.c.name.startswith(name_or_id, autoescape=True),
            cast(RUN.c.id, String).startswith(name_or_id.lower(), autoescape=True),
        )
        row = find_one(connection, RUN, exact) or find_one(connection, RUN, prefix)
        if row is None:
            raise NotFound(f"no run {name_or_id!r} in the store; `mappa runs` lists them")
        return record_of(Run, row)

    @transaction
    def list_runs(self, connection: Connection, limit: int = 50) -> tuple[Run, ...]:
        """The latest runs, newest first."""
        query = select(RUN).order_by(RUN.c.started_at.desc(), RUN.c.id).limit(limit)
        return records_of(Run, connection.execute(query))

    def claim_run(self, run_id: UUID) -> Claim:
        """Keep other processes off a run until the block, or this process, ends.

        Raises:
            RunBusy: Another process has it. Later, from everything this store is asked for inside
                the block: another process took it while Postgres was away.
        """
        return self.database.claim(run_id)

    @transaction
    def list_claimed_runs(self, connection: Connection) -> frozenset[UUID]:
        """The runs that some process has; one that is `RUNNING` and not among them was killed."""
        return frozenset(connection.execute(TAKEN).scalars())
