"""What an action asks for, done: a program among the episode's files, or a call of a tool.

program ──▶ Sandbox ──┐
call    ──▶ Toolbox ──┼─▶ ToolResult     the files stay as they are where no program ran
refused ──────────────┘
"""

from dataclasses import dataclass
from pathlib import Path

from mappa_core.core.concurrency import in_thread
from mappa_core.core.errors import ToolServerError
from mappa_core.core.records.episodes import Episode
from mappa_core.core.records.tools import (
    Limits,
    RefusedCall,
    ToolCall,
    ToolRequest,
    ToolResult,
    ToolStatus,
)
from mappa_core.rollout.config import SandboxConfig
from mappa_core.rollout.protocols import Sandbox, TaskSource, Toolbox, Workspaces

REFUSED = "mcp"
"""The tier of a call that reached no server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a team needs that works on files: where they come from and where they stay."""

    tasks: TaskSource
    workspaces: Workspaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """Where what actions ask for is done."""

    sandbox: Sandbox
    limits: Limits
    toolbox: Toolbox | None = None
    """None where no agent has tools beyond Python."""
    desk: Desk | None = None
    """None where there are no files."""


def limits_of(config: SandboxConfig) -> Limits:
    """The bounds of a run or a call as the configuration sets them."""
    return Limits(
        wall_seconds=config.wall_seconds,
        cpu_seconds=config.cpu_seconds,
        memory_bytes=config.memory_mib * 2**20,
        processes=config.processes,
        workspace_bytes=config.workspace_mib * 2**20,
        file_bytes=config.file_mib * 2**20,
        output_bytes=config.output_kib * 2**10,
    )


async def execute(episode: Episode, request: ToolRequest, bench: Workbench) -> ToolResult:
    """Do what an episode's next turn asks for, among the files that the turns before it left.

    Args:
        episode: With the turns so far.
        request: A program or a call.
        bench: Where it is done.

    Raises:
        SandboxError: The sandbox itself failed.
        ToolServerError: A tool's server died.
        WorkspaceError: The files are not there or cannot be kept.
    """
    desk = bench.desk
    if desk is None:
        return await _done(request, None, bench)
    files = await in_thread(desk.tasks.files, episode.problem)
    folder = await in_thread(desk.workspaces.open, episode, files)
    result = await _done(request, folder, bench)
    await in_thread(desk.workspaces.keep, episode, folder)
    return result


async def _done(request: ToolRequest, folder: Path | None, bench: Workbench) -> ToolResult:
    match request:
        case str():
            return await bench.sandbox.run(request, folder, bench.limits)
        case RefusedCall():
            return refusal(request)
        case ToolCall():
            if bench.toolbox is None:
                raise ToolServerError(f"no server {request.tool.server} is open")
            return await bench.toolbox.call(request, bench.limits)


def refusal(call: RefusedCall) -> ToolResult:
    """The result of a call that cannot be made: why not."""
    return ToolResult(
        code=call.text,
        status=ToolStatus.NONZERO,
        exit_code=1,
        stdout="",
        stderr=call.reason,
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        seconds=0.0,
        cpu_seconds=None,
        peak_memory_bytes=None,
        tier=REFUSED,
        read=(),
    )
