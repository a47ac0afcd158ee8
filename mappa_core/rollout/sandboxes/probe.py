"""How a sandbox proves itself: real programs try to get out, and to go on past their time."""

import asyncio
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
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
    greeting = sandbox.run("print('alive')", None, Limits())
    result, overtime = await asyncio.gather(greeting, _overtime(sandbox))
    return overtime or (None if result.stdout.startswith("alive") else _SILENT)


async def _overtime(sandbox: Sandbox) -> str | None:
    result = await sandbox.run("while True: pass", None, Limits(wall_seconds=_TIMEOUT_SECONDS))
    if result.status is ToolStatus.TIMEOUT:
        return None
    return f"a program past its time ended as {result.status}"


async def _escape(sandbox: Sandbox) -> str | None:
    """Let a canary try to get out; judge by what happened outside, not by what it says."""
    with (
        tempfile.TemporaryDirectory(prefix="mappa-canary-") as name,
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(["sleep", "60"]) as victim,
    ):
        secret, written = Path(name, "secret"), Path(name, "written")
        # Open to every user, so that it is the sandbox that refuses and not the file's owner.
        Path(name).chmod(0o777)
        secret.write_text(_BAIT)
        port = listener.getsockname()[1]
        canary = _CANARY.format(
            secret=str(secret), written=str(written), port=port, victim=victim.pid
        )
        try:
            result = await sandbox.run(canary, None, Limits())
            harm = _harm(written, victim, listener)
        finally:
            victim.kill()
    if not result.stdout.startswith("alive"):
        return _SILENT
    return "a program read a file outside" if _BAIT in result.stdout else harm


def _harm(written: Path, victim: subprocess.Popen[bytes], listener: socket.socket) -> str | None:
    if written.exists():
        return "a program wrote a file outside"
    if victim.poll() is not None:
        return "a program killed a process outside"
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return None
    return "a program reached the network of this machine"
