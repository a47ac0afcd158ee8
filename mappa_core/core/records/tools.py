"""What an agent asks to be run, what that needs, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class ToolStatus(StrEnum):
    """What became of one run or call."""

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
    """Bounds on one sandboxed run; a call of a tool heeds wall clock and output."""

    wall_seconds: float = 10.0
    cpu_seconds: float = 10.0
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    open_files: int = 128
    workspace_bytes: int = 64 * 2**20
    file_bytes: int = 16 * 2**20
    """Of one file that a program leaves; what it found and left alone may be larger."""
    inodes: int = 2048
    output_bytes: int = 64 * 2**10
    """Kept of each stream; the middle is cut and both ends stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """Something that a server does when it is called."""

    server: str
    name: str
    """As the server spells it."""
    description: str
    schema: Mapping[str, Json]
    """JSON Schema of its arguments."""

    @property
    def full_name(self) -> str:
        """What agents call it, whatever other servers there are, e.g. `units.convert`."""
        return f"{self.server}.{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that can be made."""

    text: str
    """As the agent wrote it."""
    tool: Tool
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedCall:
    """A call that cannot be made; its agent is told why."""

    text: str
    """As the agent wrote it."""
    reason: str


ToolRequest: TypeAlias = str | ToolCall | RefusedCall
"""What an action asks for: a Python program, or a call of a tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What happened when an action's program was run, or its call of a tool was made."""

    code: str
    """The program, or the call as it was written."""
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
    """Which isolation really held, e.g. `bubblewrap+cgroup+seccomp`; `mcp:<server>` of a tool."""
    written: tuple[Artifact, ...] = ()
    """Files with new content, and those written anew with the old one."""
    read: tuple[Artifact, ...] | None = None
    """Earlier turns' files whose bytes the program read; None where the tier cannot know."""
    removed: tuple[str, ...] = ()
    """Earlier turns' files that are no longer there."""
    rejected: tuple[RejectedFile, ...] = ()
