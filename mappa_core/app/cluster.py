"""Puts a run's servers and ranks into a Ray cluster, where its configuration asks for one."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.app.config import TrainConfig
from mappa_core.app.placement import Gpus, Placement
from mappa_core.cluster.bundles import Node, Request, assigned, said
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.storage import Storage
from mappa_core.coach.config import CoachModelConfig
from mappa_core.core.errors import ConfigError
from mappa_core.rollout.engines.base import EngineSetup, serves_whole_models

if TYPE_CHECKING:
    from mappa_core.cluster.ray_places import RayPlaces
    from mappa_core.cluster.ray_ranks import RayRanks
    from mappa_core.cluster.ray_servers import RayServers


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachPlaces:
    """Where the servers of a run's local coaches are; an `Elsewhere`."""

    places: "RayPlaces"
    device: str

    def servers(self, device: str) -> "RayServers":
        """Give what they come from, the first one in the first coach's bundle."""
        from mappa_core.cluster.ray_servers import RayServers

        return RayServers(self.places, device=device, first=self.places.request.first_coach)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRay:
    """A run's places in a cluster, and what computes there."""

    places: "RayPlaces"
    device: str
    ranks: int
    """Of each update at once."""
    dashboard: str | None = None
    """Where a browser finds Ray's."""
    storage: Storage | None = None
    """Where checkpoints are; None: nodes share a folder with the run."""

    def setup(self, setup: EngineSetup) -> EngineSetup:
        """Give the setup of the engine there."""
        from mappa_core.cluster.ray_servers import RayServers

        servers = RayServers(self.places, device=self.device, storage=self.storage)
        replicas = _replicas(setup.config.replicas)
        # Each server has its bundle's GPUs for itself, whatever they are called on its node.
        bundles = range(self.places.request.servers) if self.device == "cuda" else ()
        devices = tuple((f"bundle {number}",) for number in bundles)
        return replace(
            setup, device=self.device, servers=servers, replicas=replicas, devices=devices
        )

    @property
    def coaches(self) -> CoachPlaces:
        """Where the servers of local coaches are."""
        return CoachPlaces(places=self.places, device=self.device)

    def launch(
        self,
        slot: int,
        inbox: Path,  # noqa: ARG002 (each has one on its node)
        log: Path,
        variables: Mapping[str, str],
    ) -> "RayRanks":
        """Start the learner's ranks there; a `Launcher`."""
        from mappa_core.cluster.ray_ranks import RayRanks
        from mappa_core.train.learners.deepspeed.launch import WORKER

        first = self.places.request.first_rank + slot * self.ranks
        bundles = range(first, first + self.ranks)
        return RayRanks(self.places, bundles, ("-m", WORKER), log, variables)


def request(config: TrainConfig, agents: int, device: str, *, trains: bool = True) -> Request:
    """Say what a run of so many agents asks of a cluster whose nodes compute on `device`.

    One that only measures asks for no ranks.
    """
    engine, learner = config.engine, config.learner
    whole = serves_whole_models(engine, device, whole_weights=learner.weights == "full")
    ranks = learner.deepspeed.ranks * learner.updates_at_once
    return Request(
        servers=(agents if whole else 1) * _replicas(engine.replicas),
        server_gpus=engine.tensor_parallel if device == "cuda" else 0,
        ranks=ranks if learner.backend == "deepspeed" and trains else 0,
        rank_gpus=1 if device == "cuda" and learner.device != "cpu" else 0,
        coach_gpus=tuple(_gpus_of(coach, device) for coach in config.coach.served if trains),
        cpus=config.cluster.cpus,
    )


def _gpus_of(coach: CoachModelConfig, device: str) -> int:
    """Count the GPUs of a local coach's server.

    Raises:
        ConfigError: It asks for one and there is none.
    """
    if coach.server.device == "cuda" and device != "cuda":
        raise ConfigError("coach.server.device=cuda, and servers in the cluster compute on CPUs")
    return 0 if coach.server.device == "cpu" or device != "cuda" else 1


def open_storage(config: ClusterConfig, checkpoints: Path) -> Storage | None:
    """Find a run's storage of checkpoints, which it has in the folder `checkpoints` as well.

    Raises:
        ClusterError: Nothing can be written there, or not read again.
    """
    if not config.storage:
        return None
    storage = Storage(url=config.storage, root=str(checkpoints))
    storage.check()
    return storage


async def open_on_ray(
    config: TrainConfig,
    agents: int,
    stack: AsyncExitStack,
    *,
    trains: bool = True,
    storage: Storage | None = None,
) -> OnRay | None:
    """Reserve a run's places until `stack` ends; None where it asks for no cluster.

    Raises:
        ConfigError: The package is missing.
        ClusterError: There is no such cluster, or no room in it.
    """
    if config.cluster.backend != "ray":
        return None
    _check_ray()
    from mappa_core.cluster.ray_places import connected, nodes, placed

    def reserved() -> OnRay:
        dashboard = stack.enter_context(connected(config.cluster))
        gpus = any(node.get("GPU") for node in nodes())
        device = device_in(config.engine.device, gpus=gpus)
        asked = request(config, agents, device, trains=trains)
        places = stack.enter_context(placed(config.cluster, asked))
        ranks = config.learner.deepspeed.ranks
        return OnRay(
            places=places, device=device, ranks=ranks, dashboard=dashboard, storage=storage
        )

    return await asyncio.to_thread(reserved)


def nodes_of(config: ClusterConfig) -> tuple[Node, ...]:
    """List the nodes of a cluster that live.

    Raises:
        ConfigError: The package is missing.
        ClusterError: There is no such cluster.
    """
    _check_ray()
    from mappa_core.cluster.ray_places import connected, nodes

    with connected(config):
        return nodes()


def gpus_of(config: ClusterConfig) -> tuple[tuple[Node, ...], int | None]:
    """List the nodes of a cluster that live, and the bytes of their smallest GPU, if one says so.

    Raises:
        ConfigError: The package is missing.
        ClusterError: There is no such cluster.
    """
    _check_ray()
    from mappa_core.cluster.ray_places import connected, nodes, smallest_gpu

    with connected(config):
        return nodes(), smallest_gpu()


def _check_ray() -> None:
    # Ray takes a second to import, and is an extra.
    if find_spec("ray") is None:
        raise ConfigError(
            "cluster.backend=ray needs the package ray: install the extra ray, or set it to none"
        )


def placed_in(config: TrainConfig, agents: int, nodes: Sequence[Node]) -> Placement:
    """Place a run on the GPUs of a cluster's nodes, which are named `NODE.GPU`, from 0.

    Raises:
        ConfigError: There is no room for it.
    """
    asked = request(config, agents, "cuda")
    at = assigned(asked, nodes, config.cluster)
    if not at:
        raise ConfigError(
            f"no room for {asked} (cluster.placement={config.cluster.placement}): {said(nodes)}; "
            "lower engine.replicas, engine.tensor_parallel or learner.deepspeed.ranks, or add nodes"
        )
    used = [0] * len(nodes)
    gpus: list[Gpus] = []
    for bundle, node in zip(asked.bundles, at, strict=True):
        first, used[node] = used[node], used[node] + int(bundle.get("GPU", 0))
        gpus.append(tuple(f"{node}.{gpu}" for gpu in range(first, used[node])))
    return Placement(
        servers=tuple(gpus[: asked.servers]),
        replicas=_replicas(config.engine.replicas),
        learner=tuple(chain.from_iterable(gpus[asked.first_rank : asked.first_coach])),
        coaches=tuple(gpus[asked.first_coach :]),
    )


def device_in(asked: str, *, gpus: bool) -> str:
    """Say what servers compute on in a cluster that has GPUs, or has none.

    Raises:
        ConfigError: GPUs are asked for by name and there are none.
    """
    if asked == "cuda" and not gpus:
        raise ConfigError("engine.device=cuda, and no node of the cluster declares a GPU")
    return "cuda" if gpus and asked != "cpu" else "cpu"


def _replicas(asked: str | int) -> int:
    return asked if isinstance(asked, int) else 1
