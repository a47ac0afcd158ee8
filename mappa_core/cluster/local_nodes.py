"""A Ray cluster of nodes on this machine, each with an address of its own: to see a run lose one.

    head 127.0.0.2, which takes no work ─▶ nodes 127.0.0.3, 127.0.0.4, ...

Nodes declare what they are told to, CPUs and GPUs, whatever the machine has.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

import psutil
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from mappa_core.core.errors import ClusterError

STORE_BYTES = 80_000_000
_VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Or a node starts a worker for each of its CPUs beforehand, and more are declared than exist.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # What else is on this machine is no reason to kill an actor.
    "RAY_memory_monitor_refresh_ms": "0",
}


class LocalNodes:
    """Nodes that can be added and killed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Ray takes 127.0.0.1 for the machine's own address; the head has 127.0.0.2.
        self._last = 2
        self._nodes: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """Where the cluster is, as `cluster.address` has it."""
        return str(self._cluster.address)

    def add(self, cpus: int = 8, gpus: int = 0) -> None:
        """Start a node, and wait until the cluster knows it."""
        self._last += 1
        node = self._cluster.add_node(
            num_cpus=cpus,
            num_gpus=gpus,
            node_ip_address=f"127.0.0.{self._last}",
            object_store_memory=STORE_BYTES,
        )
        self._nodes[str(node.node_id)] = node

    def node_of(self, bundle: int) -> str:
        """Name the node that has a bundle of the only run in the cluster; it is connected.

        Raises:
            ClusterError: None has it.
        """
        groups = cast("dict[str, dict[str, Any]]", placement_group_table())
        for group in groups.values():
            node = str(group["bundles_to_node_id"].get(bundle, ""))
            if group["state"] == "CREATED" and node in self._nodes:
                return node
        raise ClusterError(f"no node of this cluster has the bundle {bundle} of a run")

    def kill(self, name: str) -> None:
        """End a node and all that runs on it at once, as when a machine fails."""
        node = self._nodes.pop(name)
        own = [psutil.Process(info.process.pid) for info in node.all_processes["raylet"]]
        lost = [each for raylet in own for each in (raylet, *raylet.children(recursive=True))]
        for each in lost:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def local_nodes(
    count: int, cpus: int = 8, gpus: int = 0, *, dashboard: bool = False
) -> Generator[LocalNodes]:
    """Start so many nodes for the block, the head not counted."""
    before = dict(os.environ)
    os.environ.update(_VARIABLES)
    cluster = None
    try:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "num_gpus": 0,
                "node_ip_address": "127.0.0.2",
                "object_store_memory": STORE_BYTES,
                "include_dashboard": dashboard,
            },
        )
        started = LocalNodes(cluster)
        for _ in range(count):
            started.add(cpus, gpus)
        yield started
    finally:
        if ray.is_initialized():
            ray.shutdown()
        if cluster is not None:
            cluster.shutdown()
        for name in _VARIABLES.keys() - before.keys():
            del os.environ[name]
