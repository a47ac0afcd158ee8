"""A run while it is ours: claimed, prepared, and what the store says of it when it ends."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial

from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run

from flows.ending import prefect_there, sigterm_cancels
from mappa_core.app.config import TrainConfig
from mappa_core.app.played_types import as_played
from mappa_core.app.provenance import record_provenance
from mappa_core.app.runs import prepare_evaluation, prepare_run, stored_evaluation, stored_run
from mappa_core.app.services import Services
from mappa_core.core.errors import MappaError
from mappa_core.core.records.runs import Run, RunStatus


@asynccontextmanager
async def open_run(
    port: Services, config: TrainConfig, resume: str | None = None
) -> AsyncGenerator[Run]:
    """Open a new run, or `resume`; when the block ends, it is written down how.

    Raises:
        RunBusy: Another process has it, and nothing of it was changed; or took it in an outage, and
            how it ends is that one's to write down.
        MappaError: As `stored_run` and `prepare_run`.
    """
    flow_run_id = flow_run.get_id()
    run = await asyncio.to_thread(stored_run, port, config, resume, flow_run_id)
    prepare = partial(prepare_run, port, run, config, flow_run_id)
    async with _claimed(port, run, prepare) as opened:
        yield opened


@asynccontextmanager
async def open_evaluation(
    port: Services, run: Run, config: TrainConfig, steps: tuple[int, ...]
) -> AsyncGenerator[Run]:
    """Open the run to which an evaluation of `run` after so many updates is written.

    Under the settings of `run` that is `run` itself, and how it ended is left as it is; under
    others it is one of its own, which ends as the block does.

    Raises:
        RunBusy: Another process trains `run`, or evaluates it in the same way.
    """
    stored = as_played(run, TrainConfig.model_validate(run.config))
    if config.held_out_settings() == stored.held_out_settings():
        with await asyncio.to_thread(port.store.runs.claim_run, run.id), sigterm_cancels():
            await asyncio.to_thread(record_provenance, port, run, stored)
            yield run
        return
    evaluation = await asyncio.to_thread(stored_evaluation, port, run, config)
    prepare = partial(prepare_evaluation, port, evaluation, run, steps, flow_run.get_id())
    async with _claimed(port, evaluation, prepare) as opened:
        yield opened


@asynccontextmanager
async def _claimed(port: Services, run: Run, prepare: Callable[[], Run]) -> AsyncGenerator[Run]:
    """Claim a stored run, prepare it, and write down how it ended, however it ended."""
    with await asyncio.to_thread(port.store.runs.claim_run, run.id):
        run = await _prepared(port, run, prepare)
        status, error = RunStatus.FAILED, "stopped by an unexpected error; see the log"
        try:
            with prefect_there(), sigterm_cancels():
                yield run
            status, error = RunStatus.COMPLETED, None
        # SIGTERM cancels, or Prefect raises it in whatever runs just then.
        except (asyncio.CancelledError, TerminationSignal):
            status, error = RunStatus.INTERRUPTED, None
            raise
        except MappaError as failure:
            error = str(failure)
            raise
        finally:
            port.store.runs.set_status(run.id, status, error)
            port.tracker.end(run.mlflow_run_id or "", status)


async def _prepared(port: Services, run: Run, prepare: Callable[[], Run]) -> Run:
    """One that never gets so far has failed; one that had ended stays as it was."""
    try:
        return await asyncio.to_thread(prepare)
    except MappaError as failure:
        if run.status is RunStatus.RUNNING:
            port.store.runs.set_status(run.id, RunStatus.FAILED, str(failure))
        raise
