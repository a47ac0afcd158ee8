"""What running an agent's code needs, and what came of it."""

from dataclasses import dataclass
from enum import StrEnum


class ToolStatus(StrEnum):
    """What became of one sandboxed run."""

    OK = "ok"
    NONZERO = "nonzero"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    OUTPUT_LIMIT = "output_limit"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file a turn wrote (or read), as bytes that are never opened on the host."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedFile:
    """A file the sandbox left behind that was not accepted."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on one sandboxed run."""

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    open_files: int = 128
    workspace_bytes: int = 64 * 2**20
    inodes: int = 2048
    output_bytes: int = 64 * 2**10
    """Kept of each stream; the middle is cut and both ends stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What happened when an action's code was run."""

    code: str
    status: ToolStatus
    exit_code: int | None
    """None where the program was killed before it could exit."""
    stdout: str
    """Decoded as UTF-8 with `surrogateescape` undone as `\\xNN`, so any bytes survive readably."""
    stderr: str
    stdout_omitted_bytes: int
    stderr_omitted_bytes: int
    seconds: float
    cpu_seconds: float | None
    peak_memory_bytes: int | None
    tier: str
    """Which isolation really held, e.g. `bubblewrap+cgroup+seccomp`."""
    written: tuple[Artifact, ...] = ()
    """Files with new content, and those written anew with the old one."""
    read: tuple[Artifact, ...] | None = None
    """Earlier turns' files whose bytes the program read; None where the tier cannot know."""
    removed: tuple[str, ...] = ()
    """Earlier turns' files that are no longer there."""
    rejected: tuple[RejectedFile, ...] = ()
