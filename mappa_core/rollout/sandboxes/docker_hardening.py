"""The walls and bounds that a container is made with."""

from collections.abc import Mapping

from docker.types import Ulimit

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes.supervisor import messages

_MIB = 2**20
_SUPERVISOR_BYTES, _SUPERVISOR_PROCESSES, _SUPERVISOR_FILES = 64 * _MIB, 8, 256
_SLACK_BYTES, _SLACK_INODES = 4 * _MIB, 1024
_SHARED_MEMORY_BYTES = 16 * _MIB
_ONE_CPU = 10**9


def hardening(limits: Limits, user: int) -> Mapping[str, object]:
    """What `HostConfig` says of a container: no network, nothing writable but two tmpfs, no rights.

    Its memory is that of the run plus our supervisor's, which keeps the workspace a second time.
    """
    memory = limits.memory_bytes + limits.workspace_bytes + _SUPERVISOR_BYTES
    files = max(limits.open_files, _SUPERVISOR_FILES)
    owned = f"uid={user},gid={user},mode=0700,nosuid,nodev"
    size = limits.workspace_bytes + _SLACK_BYTES
    tmpfs = f"size={size},nr_inodes={limits.inodes + _SLACK_INODES},{owned}"
    return {
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "ipc_mode": "private",
        "shm_size": _SHARED_MEMORY_BYTES,
        "mem_limit": memory,
        "memswap_limit": memory,
        "pids_limit": limits.processes + _SUPERVISOR_PROCESSES,
        "nano_cpus": _ONE_CPU,
        "tmpfs": {"/tmp": tmpfs, messages.HOME: tmpfs},  # noqa: S108 (inside the container)
        "ulimits": [
            Ulimit(name="core", soft=0, hard=0),
            Ulimit(name="nofile", soft=files, hard=files),
        ],
        "log_config": {"Type": "none", "Config": {}},
        "auto_remove": True,
    }
