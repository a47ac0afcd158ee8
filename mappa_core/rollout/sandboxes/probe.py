"""How a sandbox proves itself: real programs try to get out, and to go on past their time."""

import asyncio
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.protocols import Sandbox

Probe: TypeAlias = Callable[[Sandbox], Awaitable[str | None]]
"""Says why a sandbox must not be used; None where it may."""
_CANARY = """
import os, signal, socket
print("alive", flush=True)
for attempt in (
    lambda: print(open({secret!r}).read()),
    lambda: open({written!r}, "w"),
    lambda: socket.create_connection(("127.0.0.1", {port}), 1),
    lambda: os.kill({victim}, signal.SIGKILL),
):
    try:
        attempt()
    except OSError:
        pass
"""
_BAIT = "not for a program's eyes"
_SILENT = "a program that prints printed nothing"
_TIMEOUT_SECONDS = 0.3


async def holds(sandbox: Sandbox) -> str | None:
    """Why `sandbox` must not run hostile programs, or works not at all; None where it may."""
    escape, overtime = await asyncio.gather(_escape(sandbox), _overtime(sandbox))
    return overtime or escape


async def works(sandbox: Sandbox) -> str | None:
    """Why `sandbox` cannot run programs at all, whatever its walls; None where it can."""
    silence, overtime = await asyncio.gather(_silence(sandbox), _overtime(sandbox))
    return overtime or silence


async def _overtime(sandbox: Sandbox) -> str | None:
    result = await sandbox.run("while True: pass", None, Limits(wall_seconds=_TIMEOUT_SECONDS))
    if result.status is ToolStatus.TIMEOUT:
        return None
    return f"a program past its time ended as {result.status}"


async def _silence(sandbox: Sandbox) -> str | None:
    result = await sandbox.run("print('alive')", None, Limits())
    return None if result.stdout.startswith("alive") else _SILENT


async def _escape(sandbox: Sandbox) -> str | None:
    """Let a canary try to get out; judge by what happened outside, not by what it says."""
    with ExitStack() as stack:
        bait = _lay_bait(stack)
        result = await sandbox.run(bait.canary, None, Limits())
        if not result.stdout.startswith("alive"):
            return _SILENT
        if _BAIT in result.stdout:
            return "a program read a file outside"
        return bait.harm()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bait:
    """Things outside that a canary is told to reach for."""

    folder: Path
    listener: socket.socket
    victim: subprocess.Popen[bytes]

    @property
    def canary(self) -> str:
        return _CANARY.format(
            secret=str(self.folder / "secret"),
            written=str(self.folder / "written"),
            port=self.listener.getsockname()[1],
            victim=self.victim.pid,
        )

    def harm(self) -> str | None:
        """What the canary did; None if nothing."""
        if (self.folder / "written").exists():
            return "a program wrote a file outside"
        if self.victim.poll() is not None:
            return "a program killed a process outside"
        try:
            self.listener.accept()[0].close()
        except BlockingIOError:
            return None
        return "a program reached the network of this machine"


def _lay_bait(stack: ExitStack) -> _Bait:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mappa-canary-")))
    # Open to every user, so that it is the sandbox that refuses and not the file's owner.
    folder.chmod(0o777)
    (folder / "secret").write_text(_BAIT)
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    listener.setblocking(False)
    victim = stack.enter_context(subprocess.Popen(["sleep", "60"]))
    stack.callback(victim.kill)
    return _Bait(folder=folder, listener=listener, victim=victim)
