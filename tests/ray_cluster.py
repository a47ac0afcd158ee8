"""A Ray cluster on this machine: nodes with addresses of their own, on the loopback."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

# Before Ray is imported: it would start a worker for each logical CPU beforehand.
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    # What else is on this machine is no reason to kill an actor.
    "RAY_memory_monitor_refresh_ms": "0",
}

from ray.cluster_utils import Cluster

STORE_BYTES = 80_000_000


class LocalCluster:
    """Nodes that can be added and killed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # Ray takes 127.0.0.1 for the machine's own address; the head has 127.0.0.2.
        self._last = 2

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add(self, cpus: int = 8, gpus: int = 0) -> Any:
        self._last += 1
        return self._cluster.add_node(
            num_cpus=cpus,
            num_gpus=gpus,
            node_ip_address=f"127.0.0.{self._last}",
            object_store_memory=STORE_BYTES,
        )

    def kill(self, node: Any) -> None:
        """At once, as when a machine fails."""
        self._cluster.remove_node(node, allow_graceful=False)


@contextmanager
def local_cluster(nodes: int, cpus: int = 8, gpus: int = 0) -> Generator[LocalCluster]:
    """So many nodes, the head not counted: it takes no work."""
    head = {
        "num_cpus": 0,
        "num_gpus": 0,
        "node_ip_address": "127.0.0.2",
        "object_store_memory": STORE_BYTES,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        started = LocalCluster(cluster)
        for _ in range(nodes):
            started.add(cpus, gpus)
        yield started
    finally:
        cluster.shutdown()
