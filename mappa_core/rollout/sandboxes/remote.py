"""What the sandboxes elsewhere have in common: a run is packed, exchanged, and taken back."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolResult
from mappa_core.rollout.sandboxes import payload
from mappa_core.rollout.sandboxes.payload import Reply
from mappa_core.rollout.sandboxes.supervisor import unsafe_subprocess


class RemoteSandbox(ABC):
    """A `Sandbox` whose programs run elsewhere, beside a supervisor that is sent along."""

    def __init__(self, name: str, concurrency: int, *, packages: bool) -> None:
        """Prepare it; `start` tries it.

        Args:
            name: Of the backend.
            concurrency: Runs at once.
            packages: Whether programs may import the packages of the Python found there.
        """
        self._name = name
        self._permits = asyncio.Semaphore(concurrency)
        self._packages = packages
        self._tier = name

    @property
    def tier(self) -> str:
        """Which isolation holds, e.g. `docker+landlock+cgroup+tmpfs+seccomp`."""
        return self._tier

    async def start(self) -> None:
        """Check that a program runs there, and learn what holds.

        Raises:
            SandboxUnavailable: It does not.
        """
        try:
            self._tier = (await self.run("print(1)", None, Limits())).tier
        except SandboxError as error:
            raise SandboxUnavailable(str(error)) from None

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        """Run `code` as `main.py`; see `Sandbox`.

        Raises:
            SandboxError: What runs it failed, or did not answer in time.
        """
        files = await asyncio.to_thread(
            payload.packed, code, workspace, limits, packages=self._packages
        )
        async with self._permits:
            reply = await self._exchange(files, limits)
        tier = self._around(reply.result.tier)
        return await asyncio.to_thread(payload.take_back, reply, workspace, code=code, tier=tier)

    def _around(self, inside: str) -> str:
        """The tier of a run whose supervisor had the tier `inside`, or did not live to say."""
        if not inside:
            return self._tier
        held = inside.removeprefix(unsafe_subprocess.TIER.name).removeprefix("+")
        return f"{self._name}+{held}" if held else self._name

    @abstractmethod
    async def _exchange(self, files: Mapping[str, bytes], limits: Limits) -> Reply:
        """Have the run that `files` describe done, once.

        Raises:
            SandboxError: It cannot be done, or is not to be known.
        """

    @abstractmethod
    async def close(self) -> None:
        """Leave nothing behind; safe to call twice."""
