"""Runs in the store and the tracker: new, found again, a fork, or one that measures another.

RUN                as it was set up; also its own evaluation, with more samples
RUN-eval-1a2b3c    its evaluation under other settings, so that results never mix

A run is stored, then claimed, and only then prepared: what another process has stays as it is.
"""

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from uuid import UUID, uuid4

from mappa_core.app.checks import check_same_weights, check_trains, check_weights
from mappa_core.app.config import TrainConfig
from mappa_core.app.played_types import as_played
from mappa_core.app.provenance import code_version, current_provenance, record_provenance
from mappa_core.app.services import Services
from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import Run, RunStatus, evaluation_name
from mappa_core.train.forking import Check, adopt, check_fork, check_resumable
from mappa_core.train.update import base_policy, policy_at


def stored_run(
    port: Services, config: TrainConfig, resume: str | None, flow_run_id: str | None = None
) -> Run:
    """Store a new run, or find `resume` again as it was left.

    Args:
        port: Where it is stored, and what it trains.
        config: The run's.
        resume: Name, id or a prefix of either; None for a new run.
        flow_run_id: Of Prefect. A new run's id follows from it, so that a retried flow run goes on
            with its own run.

    Raises:
        NotFound: No run `resume`, or none to fork.
        ConfigError: It was started with another configuration, cannot be forked so, or measures
            another run.
        LearnerError: The weights that a fork would go on from are missing or damaged.
    """
    source = _source(port, config)
    if resume is not None:
        run = port.store.runs.get_run(resume)
        check_trains(run)
        _check_same_config(run, config)
        return run
    if source is not None:
        check_same_weights(source, config, "a fork")
        check_fork(source, config.start.step, port.store, _check(port))
    identity, now = ids.content_id("run", flow_run_id or uuid4()), datetime.now(UTC)
    # A piece of the id at the end: two runs may start in one second.
    name = f"{config.name}-{now:%Y%m%d-%H%M%S}-{identity.hex[:4]}"
    return _stored(port, identity, name, config, now)


def _check(port: Services) -> Check:
    return partial(check_weights, storage=port.storage)


def prepare_run(
    port: Services, run: Run, config: TrainConfig, flow_run_id: str | None = None
) -> Run:
    """Give a stored run its links to the other systems, its first policies and its problems.

    Raises:
        LearnerError: The weights it would go on from are missing or damaged.
        TrackerError: MLflow is unreachable or refused.
    """
    for agent in port.team.agents:
        port.store.policies.add_policy_version(base_policy(run.id, agent.name, port.model))
    source = _source(port, config)
    if source is not None:
        adopt(source, run.id, port.store, config.start.step)
    # Once they are this run's too: its source may be training, and retires what only it has.
    check_resumable(port.store, run.id, _check(port))
    record_provenance(port, run, config)
    _link(port, run, flow_run_id)
    port.store.runs.add_manifest(run.id, "train", port.problems.train())
    port.store.runs.add_manifest(run.id, "held_out", port.problems.held_out())
    return port.store.runs.get_run(str(run.id))


def stored_evaluation(port: Services, run: Run, config: TrainConfig) -> Run:
    """Store the run that measures `run` under other settings, or find it again by them."""
    identity = ids.content_id("evaluation", run.id, config.held_out_settings())
    return _stored(port, identity, evaluation_name(run, identity), config, datetime.now(UTC))


def prepare_evaluation(
    port: Services,
    evaluation: Run,
    run: Run,
    steps: tuple[int, ...],
    flow_run_id: str | None = None,
) -> Run:
    """Give an evaluation of `run` its links, its problems and the policies that it measures."""
    record_provenance(port, evaluation, TrainConfig.model_validate(evaluation.config))
    _link(port, evaluation, flow_run_id)
    port.store.runs.add_manifest(evaluation.id, "held_out", port.problems.held_out())
    for agent in port.team.agents:
        for step in steps:
            policy = policy_at(port.store, run.id, agent.name, step)
            identity = ids.policy_version_id(evaluation.id, agent.name, step)
            port.store.policies.add_policy_version(
                replace(policy, id=identity, run_id=evaluation.id)
            )
    return port.store.runs.get_run(str(evaluation.id))


def _stored(
    port: Services, identity: UUID, name: str, config: TrainConfig, started_at: datetime
) -> Run:
    """Add a run to the store; one that was there stays as it was."""
    port.store.runs.add_run(
        Run(
            id=identity,
            name=name,
            team=config.team,
            config=config.model_dump(mode="json"),
            code_version=code_version(),
            seed=config.seed,
            sandbox_tier=port.sandbox.tier,
            started_at=started_at,
            provenance=(current_provenance(port, config),),
        )
    )
    return port.store.runs.get_run(str(identity))


def _source(port: Services, config: TrainConfig) -> Run | None:
    """Find the run that one of this configuration goes on from, where it does."""
    return port.store.runs.get_run(config.start.run) if config.start.run else None


def _link(port: Services, run: Run, flow_run_id: str | None) -> None:
    """Open a run in the tracker too, and write down its ids in the other systems."""
    tracker_id = port.tracker.start(replace(run, prefect_flow_run_id=flow_run_id))
    port.store.runs.link_run(run.id, prefect_flow_run_id=flow_run_id, mlflow_run_id=tracker_id)
    port.store.runs.set_status(run.id, RunStatus.RUNNING)


def _check_same_config(run: Run, config: TrainConfig) -> None:
    # An older run lacks the keys that came later; their defaults are what it ran with.
    stored = as_played(run, TrainConfig.model_validate(run.config))
    different = stored.same_experiment(as_played(run, config))
    if different:
        raise ConfigError(
            f"run {run.name} was started with another {', '.join(different)}: resume it as it "
            "was, or start a new run"
        )
