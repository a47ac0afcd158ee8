"""Configures where servers and ranks run."""

from typing import Literal

from pydantic import Field

from mappa_core.core.section import Section


class ClusterConfig(Section):
    """Machines beside this one."""

    backend: Literal["none", "ray"] = Field(
        default="none",
        description="none: all of a run is on this machine; ray: its vLLM servers, and the ranks "
        "of learner.backend=deepspeed, are actors of a Ray cluster (experimental: tested on nodes "
        "of one machine without a GPU).",
    )
    address: str = Field(
        default="",
        description="Of the cluster, as 10.0.0.5:6379; empty: RAY_ADDRESS, or the one that runs "
        "on this machine.",
    )
    placement: Literal["pack", "spread", "strict_pack", "strict_spread"] = Field(
        default="pack",
        description="Whether servers and ranks share few nodes or have many; strict: one node for "
        "all, or one for each.",
    )
    cpus: float = Field(
        default=1.0,
        gt=0,
        description="Logical CPUs of Ray for each server and each rank, beside its GPUs.",
    )
    storage: str = Field(
        default="",
        pattern=r"^$|^(s3|gs|file)://.+",
        description="Where all nodes find checkpoints: s3://bucket/prefix, gs://bucket/prefix or "
        "file:///path, by pyarrow (keys: the environment's); empty: they share MAPPA_HOME.",
    )
    wait_seconds: float = Field(
        default=120, gt=0, description="How long a run waits for its places in the cluster."
    )
