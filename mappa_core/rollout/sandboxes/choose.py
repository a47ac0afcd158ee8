"""Picks the strongest sandbox that proves itself on this machine, or refuses."""

import asyncio
import logging
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, get_args

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.config import Runtime
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes import docker, fusion
from mappa_core.rollout.sandboxes.client import SupervisedSandbox
from mappa_core.rollout.sandboxes.launch import Backend
from mappa_core.rollout.sandboxes.packages import DATA_SCIENCE, importable

_log = logging.getLogger(__name__)
_STRONGEST_FIRST = (fusion.NAME, docker.NAME, "bubblewrap", "landlock")
"""Those that somebody has set up first: a server's address, then an engine with our image."""
_UNSAFE: Backend = "unsafe-subprocess"
_WITHOUT_WALLS = (fusion.NAME, _UNSAFE)
"""Taken by name as they are: a server's walls are the business of who runs it."""
_HOW_TO = (
    "install bubblewrap (apt install bubblewrap), or set sandbox.backend=unsafe-subprocess "
    "to run model-written code unprotected"
)
_CANARY = """
import os, signal, socket
print("alive", flush=True)
for attempt in (
    lambda: print(open({secret!r}).read()),
    lambda: open({beside!r}, "w"),
    lambda: socket.create_connection(("127.0.0.1", {port}), 1),
    lambda: os.kill({victim}, signal.SIGKILL),
):
    try:
        attempt()
    except OSError:
        pass
"""
_BAIT = "not for a program's eyes"
_TIMEOUT_SECONDS = 0.3


async def choose_sandbox(
    backend: str,
    concurrency: int,
    runtime: Runtime = "standard-library",
    *,
    fusion_url: str | None = None,
    image: str = docker.IMAGE,
) -> Sandbox:
    """The sandbox to use, started and probed.

    Args:
        backend: `auto` for the first tier that passes its probe, or a tier's name.
        concurrency: Runs at once.
        runtime: What programs may import.
        fusion_url: Where SandboxFusion is; `auto` passes it over where there is none.
        image: What Docker makes containers of.

    Raises:
        SandboxUnavailable: No tier, or not the named one, holds on this machine.
    """
    if backend == fusion.NAME and fusion_url is None:
        raise SandboxUnavailable(
            "sandbox.backend=sandbox-fusion needs the server's address in MAPPA_SANDBOXFUSION_URL"
        )
    named = backend != "auto"
    objections: list[str] = []
    for name in (backend,) if named else _STRONGEST_FIRST:
        if name == fusion.NAME and fusion_url is None:
            continue
        sandbox = _made(name, concurrency, runtime, fusion_url or "", image)
        objection = await _objection(sandbox, walls=not (named and name in _WITHOUT_WALLS))
        if objection is None:
            _report(objections, sandbox.tier, asked=fusion_url)
            return sandbox
        await sandbox.close()
        objections.append(objection if objection.startswith(name) else f"{name}: {objection}")
    raise SandboxUnavailable(f"{'; '.join(objections)}. To mend it, {_HOW_TO}")


_Startable: TypeAlias = SupervisedSandbox | fusion.FusionSandbox | docker.DockerSandbox


def _made(name: str, concurrency: int, runtime: Runtime, fusion_url: str, image: str) -> _Startable:
    packages = runtime == "data-science"
    if name == fusion.NAME:
        return fusion.FusionSandbox(fusion_url, concurrency, packages=packages)
    if name == docker.NAME:
        return docker.DockerSandbox(concurrency, packages=packages, image=image)
    (tier,) = (tier for tier in get_args(Backend) if tier == name)
    return SupervisedSandbox(tier, concurrency, importable(DATA_SCIENCE if packages else ()))


def _report(objections: list[str], tier: str, asked: str | None) -> None:
    """Say so where the server that was set up by its address is not what is used."""
    refused = [objection for objection in objections if objection.startswith(fusion.NAME)]
    if asked and refused:
        _log.warning("%s; using %s instead", refused[0], tier)


async def _objection(sandbox: _Startable, *, walls: bool) -> str | None:
    """Why `sandbox` may not be used here; None where it may."""
    try:
        await sandbox.start()
        escape, overtime = await asyncio.gather(
            _escape(sandbox), sandbox.run("while True: pass", None, _brief())
        )
    except SandboxError as error:
        return str(error)
    if overtime.status is not ToolStatus.TIMEOUT:
        return f"a program past its time ended as {overtime.status}"
    return escape if walls or escape == _SILENT else None


def _brief() -> Limits:
    return Limits(wall_seconds=_TIMEOUT_SECONDS)


_SILENT = "a program that prints printed nothing"


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
            beside=str(self.folder / "written"),
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
