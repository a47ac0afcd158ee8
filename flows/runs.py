"""A run in the store and the tracker: new, found again, or a fork of another; and how it ended."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run

from flows.ending import prefect_there, sigterm_cancels
from mappa_core.app.checks import check_same_weights, check_trains, check_weights
from mappa_core.app.config import TrainConfig
from mappa_core.app.machine import code_version
from mappa_core.app.services import services
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError, MappaError
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.train.forking import adopt, check_fork, check_resumable
from mappa_core.train.update import base_policy

Prepare = Callable[[Run], Run]


def open_run(config: TrainConfig, resume: str | None) -> Run:
    """The run in the store and the tracker, new or found again, with the policies it starts from.

    Raises:
        MappaError: As `stored_run` and `prepared`.
    """
    return prepared(stored_run(config, resume), config)


def stored_run(config: TrainConfig, resume: str | None) -> Run:
    """The run in the store, new or found again; one that was there is as it was.

    Raises:
        NotFound: No run `resume`, or none to fork.
        ConfigError: It was started with another configuration, cannot be forked so, or measures
            another run.
        LearnerError: The weights that a fork would go on from are missing or damaged.
    """
    port = services()
    source = _source(config)
    if resume is not None:
        run = port.store.runs.get_run(resume)
        check_trains(run)
        _check_same_config(run, config)
        return run
    run = _new_run(config)
    if source is not None:
        check_same_weights(source, config, "a fork")
        check_fork(source, config.start.step, port.store, check_weights)
    port.store.runs.add_run(run)
    return port.store.runs.get_run(str(run.id))


def prepared(run: Run, config: TrainConfig) -> Run:
    """A stored run with its links to the other systems, its first policies and its problems.

    Raises:
        LearnerError: The weights it would go on from are missing or damaged.
        TrackerError: MLflow is unreachable or refused.
    """
    port = services()
    for agent in port.team.agents:
        port.store.policies.add_policy_version(base_policy(run.id, agent.name, port.model))
    source = _source(config)
    if source is not None:
        adopt(source, run.id, port.store, config.start.step)
    # Once they are this run's too: its source may be training, and retires what is nobody else's.
    check_resumable(port.store, run.id, check_weights)
    link(run)
    port.store.runs.add_manifest(run.id, "train", port.problems.train())
    port.store.runs.add_manifest(run.id, "held_out", port.problems.held_out())
    return port.store.runs.get_run(str(run.id))


def _source(config: TrainConfig) -> Run | None:
    """The run that one of this configuration goes on from, where it does."""
    return services().store.runs.get_run(config.start.run) if config.start.run else None


def link(run: Run) -> None:
    """Open it in the tracker too, and write down its ids in the other systems."""
    port = services()
    flow_run_id = flow_run.get_id()
    tracker_id = port.tracker.start(replace(run, prefect_flow_run_id=flow_run_id))
    port.store.runs.link_run(run.id, prefect_flow_run_id=flow_run_id, mlflow_run_id=tracker_id)
    port.store.runs.set_status(run.id, RunStatus.RUNNING)


def _new_run(config: TrainConfig) -> Run:
    """A run by the id of its Prefect flow run, so that retrying that goes on with it.

    Its name ends in a piece of its id: two runs may start in one second.
    """
    identity = ids.content_id("run", flow_run.get_id() or uuid4())
    now = datetime.now(UTC)
    return Run(
        id=identity,
        name=f"{config.name}-{now:%Y%m%d-%H%M%S}-{identity.hex[:4]}",
        team=config.team,
        config=config.model_dump(mode="json"),
        code_version=code_version(),
        seed=config.seed,
        sandbox_tier=services().sandbox.tier,
        started_at=now,
    )


def _check_same_config(run: Run, config: TrainConfig) -> None:
    # An older run lacks the keys that came later; their defaults are what it ran with.
    different = TrainConfig.model_validate(run.config).same_experiment(config)
    if different:
        raise ConfigError(
            f"run {run.name} was started with another {', '.join(different)}: resume it as it "
            "was, or start a new run"
        )


async def _ready(run: Run, prepare: Prepare) -> Run:
    """Prepared. One that never gets so far has failed; one that had ended stays as it was."""
    try:
        return await asyncio.to_thread(prepare, run)
    except MappaError as failure:
        if run.status is RunStatus.RUNNING:
            services().store.runs.set_status(run.id, RunStatus.FAILED, str(failure))
        raise


@asynccontextmanager
async def recorded(run: Run, prepare: Prepare) -> AsyncGenerator[Run]:
    """Have a stored run to ourselves, prepared, and write down how it ended, however it ended.

    Args:
        run: It may have ended before.
        prepare: Gives it what it lacks, and opens it again; called when nobody else has it.

    Raises:
        RunBusy: Another process has it, and nothing of it was changed; or took it in an outage, and
            how it ends is that one's to write down.
    """
    port = services()
    with await asyncio.to_thread(port.store.runs.claim_run, run.id):
        run = await _ready(run, prepare)
        status, error = RunStatus.FAILED, "stopped by an unexpected error; see the log"
        try:
            with prefect_there(), sigterm_cancels():
                yield run
            status, error = RunStatus.COMPLETED, None
        # SIGTERM cancels, or Prefect raises it in whatever step runs just then.
        except (asyncio.CancelledError, TerminationSignal):
            status, error = RunStatus.INTERRUPTED, None
            raise
        except MappaError as failure:
            error = str(failure)
            raise
        finally:
            port.store.runs.set_status(run.id, status, error)
            port.tracker.end(run.mlflow_run_id or "", status)
