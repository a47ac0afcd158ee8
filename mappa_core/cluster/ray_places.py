"""A run's places in a Ray cluster: one placement group, and actors in its bundles.

    connect ─▶ placement group of all bundles, reserved together ─▶ actors, one for each bundle
    a node dies ─▶ Ray finds its bundles other nodes ─▶ new actors there, asked for by who lost one

The group is the run's: it goes with the process that made it, however that ends.
"""

import logging
import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from mappa_core.cluster.bundles import Request, said
from mappa_core.cluster.config import ClusterConfig
from mappa_core.core.errors import ClusterError
from mappa_core.core.machine import gpu_bytes

Actor: TypeAlias = Any
"""A handle of Ray; its methods are the class's with `.remote`."""

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 120.0
"""A node's first task starts a process there."""
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


class RayPlaces:
    """The bundles of one run."""

    def __init__(self, group: PlacementGroup, request: Request) -> None:
        self._group = group
        self.request = request
        """What was asked for."""

    def actor(self, kind: type, bundle: int, *given: object) -> Actor:
        """Make an actor in a bundle, with all that the bundle has; it is never started again."""
        has = self.request.bundles[bundle]
        place = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle
        )
        made = ray.remote(kind).options(
            num_cpus=has["CPU"],
            num_gpus=has.get("GPU", 0),
            scheduling_strategy=place,
            max_restarts=0,
        )
        return made.remote(*given)


@contextmanager
def connected(config: ClusterConfig) -> Generator[str | None]:
    """Be connected to the cluster inside the block; a connection that is there already stays.

    Yields where a browser finds its dashboard, if it has one and was connected to here.

    Raises:
        ClusterError: There is none at its address.
    """
    if ray.is_initialized():
        yield None
        return
    address = config.address or os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _check_listening(address)
        # Below errors it says that it sets no handler of signals: ours end a run, and its places.
        joined = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RayError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"no Ray cluster at {address} ({_one_line(error)}): start one (docs/scaling.md), set "
            "cluster.address, or cluster.backend=none"
        ) from error
    try:
        yield f"http://{joined.dashboard_url}" if joined.dashboard_url else None
    finally:
        ray.shutdown()


@contextmanager
def placed(config: ClusterConfig, request: Request) -> Generator[RayPlaces]:
    """Reserve all bundles of a run for as long as the block lasts; `connected` comes first.

    Raises:
        ClusterError: They were not free within `cluster.wait_seconds`.
    """
    group = placement_group(
        [dict(bundle) for bundle in request.bundles], strategy=config.placement.upper()
    )
    try:
        if not group.wait(config.wait_seconds):
            raise ClusterError(
                f"the cluster has no room for {request} ({config.placement}) after "
                f"{config.wait_seconds:.0f} s: its {said(nodes())}"
            )
        yield RayPlaces(group, request)
    finally:
        remove_placement_group(group)


def nodes() -> tuple[Mapping[str, float], ...]:
    """List the nodes that live, with the CPUs and GPUs of each."""
    return tuple(
        {name: float(node["Resources"].get(name, 0)) for name in ("CPU", "GPU")}
        for node in ray.nodes()
        if node["Alive"]
    )


def smallest_gpu() -> int | None:
    """Ask all nodes that live and declare GPUs for their memory, in bytes; None where none says.

    Raises:
        ClusterError: One of them does not answer.
    """
    asked = ray.remote(gpu_bytes)
    answers = [
        asked.options(
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
        ).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU")
    ]
    try:
        found = ray.get(answers, timeout=_ANSWER_SECONDS)
    except RayError as error:
        raise ClusterError(f"a node does not say its GPUs' memory ({_one_line(error)})") from error
    return min((each for each in found if each is not None), default=None)


def _check_listening(address: str) -> None:
    """Find out whether anything listens at an address: Ray itself would try for minutes.

    Raises:
        OSError: Nothing does.
        ValueError: It is none.
    """
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition(":")
    socket.create_connection((host.removeprefix("ray://"), int(port)), _CONNECT_SECONDS).close()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
