"""One thing that takes memory, and units that plans share."""

from dataclasses import dataclass
from typing import Literal

GB = 10**9
CONTEXT_BYTES = 0.8 * GB
"""Of one process on a GPU: CUDA's context and libraries."""
COLLECTIVE_BYTES = 0.5 * GB
"""Of NCCL's buffers on a GPU that works with others; an allowance, which no GPU has confirmed."""

Phase = Literal["rollout", "update"]
PHASES: tuple[Phase, ...] = ("rollout", "update")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that takes memory."""

    phase: Phase
    what: str
    gpu_bytes: float = 0.0
    host_bytes: float = 0.0
