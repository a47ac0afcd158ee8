"""Registers what a run trains: one model per agent and team, the newest version a `candidate`."""

from collections.abc import Mapping
from types import MappingProxyType

from mappa_core.core.records.runs import Run
from mappa_core.store.store import Store
from mappa_core.tracking.protocols import ModelRegistry

_NO_OTHERS: Mapping[str, int] = MappingProxyType({})


def registered_name(team: str, agent: str) -> str:
    """Name the registered model of one agent of one team."""
    return f"mappa-{team}-{agent}"


def register_policies(
    run: Run,
    iteration: int,
    *,
    registry: ModelRegistry,
    store: Store,
    also: Mapping[str, int] = _NO_OTHERS,
) -> tuple[str, ...]:
    """Register each agent's checkpoint of one iteration as its `candidate`.

    Args:
        run: What trained them.
        iteration: Whose checkpoints are registered.
        registry: Where to.
        store: Whose rows name the versions.
        also: An earlier step to register before it, by agent.

    Returns:
        `name/version` of what was not registered before.

    Raises:
        TrackerError: The registry is unreachable or refused.
    """
    registered: list[str] = []
    for policy, checkpoint in store.policies.list_checkpoints(run.id):
        if policy.step not in (iteration, also.get(policy.agent)):
            continue
        name = registered_name(run.team, policy.agent)
        version = registry.register(
            name,
            policy,
            checkpoint,
            tracker_run_id=run.mlflow_run_id or "",
            tags={
                "mappa.iteration": str(policy.step),
                "prefect.flow_run_id": run.prefect_flow_run_id or "",
            },
            alias="candidate",
        )
        if store.policies.set_model_version(checkpoint.id, name, version):
            registered.append(f"{name}/{version}")
    return tuple(registered)
