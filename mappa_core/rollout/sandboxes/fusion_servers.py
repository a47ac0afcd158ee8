"""Several SandboxFusion servers as one sandbox: evenly used, and one that fails is left out.

run ─▶ the server with the fewest runs under way ─▶ result
         ├─ refused: nothing ran there ─▶ the next one
         └─ failed: the program may have run ─▶ the run's error
       either way it is left out ─▶ tried every few seconds as at the start ─▶ back
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolResult
from mappa_core.rollout.sandboxes.probe import Probe
from mappa_core.rollout.sandboxes.sandbox_fusion import FusionSandbox

_log = logging.getLogger(__name__)
_LOOK_AGAIN_SECONDS = 2.0
_PATIENCE_SECONDS = 30.0
"""How long a run waits where every server is left out."""


class _Server:
    """One of the servers, and how busy it is with us."""

    def __init__(self, sandbox: FusionSandbox) -> None:
        self.sandbox = sandbox
        self.left_out = False
        self.under_way = 0
        self.taken = 0

    @property
    def load(self) -> tuple[int, int]:
        """What it is chosen by, least first: runs under way, then runs so far."""
        return self.under_way, self.taken

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        self.under_way += 1
        self.taken += 1
        try:
            return await self.sandbox.run(code, workspace, limits)
        finally:
            self.under_way -= 1


class FusionServers:
    """A sandbox whose programs run on whichever of its servers is least busy.

    A server runs programs only after it has passed the probe, at the start and whenever it has been
    left out: a server that came back may have come back without its walls.
    """

    def __init__(
        self,
        sandboxes: Sequence[FusionSandbox],
        concurrency: int,
        passes: Probe,
        *,
        look_again_seconds: float = _LOOK_AGAIN_SECONDS,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """Prepare it; `start` tries every server.

        Args:
            sandboxes: One for each server.
            concurrency: Runs at once, on all servers together.
            passes: Says why a server may not be used.
            look_again_seconds: Between two tries of a server that was left out.
            patience_seconds: How long a run waits where every server is left out.
        """
        self._servers = tuple(_Server(sandbox) for sandbox in sandboxes)
        self._permits = asyncio.Semaphore(concurrency)
        self._passes = passes
        self._look_again_seconds = look_again_seconds
        self._patience_seconds = patience_seconds
        self._some_left = asyncio.Event()
        self._some_left.set()
        self._returns: set[asyncio.Task[None]] = set()

    @property
    def tier(self) -> str:
        """Which isolation holds; where servers differ, each kind."""
        return " or ".join(sorted({server.sandbox.tier for server in self._servers}))

    async def start(self) -> None:
        """Try every server; those that fail are left out until they pass.

        Raises:
            SandboxUnavailable: None of them may be used.
        """
        objections = await asyncio.gather(*(self._objection(each) for each in self._servers))
        if all(objections):
            raise SandboxUnavailable("; ".join(objection or "" for objection in objections))
        for server, objection in zip(self._servers, objections, strict=True):
            if objection:
                self._leave_out(server, objection)

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        """Run `code` on the least busy server; see `Sandbox`.

        Raises:
            SandboxError: No server can be reached, or the one that was asked failed.
        """
        async with self._permits:
            while True:
                server = await self._least_busy()
                try:
                    return await server.run(code, workspace, limits)
                except SandboxUnavailable as error:
                    self._leave_out(server, str(error))
                except SandboxError as error:
                    self._leave_out(server, str(error))
                    raise

    async def close(self) -> None:
        """Stop looking and give connections back; safe to call twice."""
        for returning in self._returns:
            returning.cancel()
        await asyncio.gather(*self._returns, return_exceptions=True)
        for server in self._servers:
            await server.sandbox.close()

    async def _least_busy(self) -> _Server:
        try:
            async with asyncio.timeout(self._patience_seconds):
                await self._some_left.wait()
        except TimeoutError:
            urls = ", ".join(server.sandbox.url for server in self._servers)
            raise SandboxError(
                f"no SandboxFusion server has answered for {self._patience_seconds:.0f} s: {urls}"
            ) from None
        return min((each for each in self._servers if not each.left_out), key=lambda s: s.load)

    async def _objection(self, server: _Server) -> str | None:
        """Why no program may be sent there; None where it may."""
        try:
            await server.sandbox.start()
            return await self._passes(server.sandbox)
        except SandboxError as error:
            return str(error)

    def _leave_out(self, server: _Server, reason: str) -> None:
        if server.left_out:
            return
        server.left_out = True
        if all(each.left_out for each in self._servers):
            self._some_left.clear()
        _log.warning("a SandboxFusion server is left out: %s", reason)
        returning = asyncio.create_task(self._take_back(server))
        self._returns.add(returning)
        returning.add_done_callback(self._returns.discard)

    async def _take_back(self, server: _Server) -> None:
        """Wait until the server passes again."""
        while True:
            await asyncio.sleep(self._look_again_seconds)
            if await self._objection(server) is None:
                break
        server.left_out = False
        self._some_left.set()
        _log.warning("the SandboxFusion server %s is back", server.sandbox.url)
