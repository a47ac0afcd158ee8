"""What the sandboxes elsewhere have in common: a run is packed, exchanged, and taken back.

    our supervisor's source, the request, the workspace's files  ─▶  a result, the files it names

What comes back is from behind walls that a program may have broken: it is checked to be a result,
names to be plain, contents to have the hash they claim.
"""

import asyncio
import base64
import hashlib
import io
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

import mappa_core
from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Artifact, Limits, ToolResult, ToolStatus
from mappa_core.rollout.sandboxes.supervisor import messages
from mappa_core.rollout.sandboxes.supervisor.messages import Failure, Request
from mappa_core.rollout.sandboxes.supervisor.tier import UNSAFE

GRACE_SECONDS = 30.0
_SUPERVISOR = "mappa_core/rollout/sandboxes/supervisor"
_NEEDED = (
    "mappa_core/core/errors.py",
    "mappa_core/core/streams.py",
    "mappa_core/core/records/tools.py",
)
"""What of the package the supervisor imports beside its own folder."""
_REPLY = TypeAdapter[ToolResult | Failure](ToolResult | Failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a supervisor elsewhere sent back."""

    result: ToolResult
    contents: bytes = b""
    """The bytes of the files that were written, one after the other."""


class RemoteSandbox(ABC):
    """A `Sandbox` whose programs run elsewhere, beside a supervisor that is sent along."""

    def __init__(
        self, name: str, concurrency: int, *, packages: bool, grace_seconds: float
    ) -> None:
        """Prepare it; `start` tries it.

        Args:
            name: Of the backend.
            concurrency: Runs at once.
            packages: Whether programs may import the packages of the Python found there.
            grace_seconds: What a run may take there beyond the program's wall clock.
        """
        self._name = name
        self._permits = asyncio.Semaphore(concurrency)
        self._packages = packages
        self._grace_seconds = grace_seconds
        self.tier = name
        """Which isolation holds, e.g. `docker+landlock+cgroup+tmpfs+seccomp`."""

    async def start(self) -> None:
        """Check that a program runs there, and learn what holds.

        Raises:
            SandboxError: It does not.
        """
        self.tier = (await self.run("print(1)", None, Limits())).tier

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        """Run `code` as `main.py`; see `Sandbox`.

        Raises:
            SandboxError: What runs it failed, or did not answer in time.
        """
        files = await asyncio.to_thread(packed, code, workspace, limits, packages=self._packages)
        async with self._permits:
            reply = await self._exchange(files, limits)
        tier = self._around(reply.result.tier)
        return await asyncio.to_thread(take_back, reply, workspace, code=code, tier=tier)

    def _around(self, inside: str) -> str:
        """The tier of a run whose supervisor had the tier `inside`, or did not live to say."""
        if not inside:
            return self.tier
        held = inside.removeprefix(UNSAFE.name).removeprefix("+")
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


@cache
def source() -> bytes:
    """A zip of the supervisor's source, which Python can import from."""
    root = Path(mappa_core.__file__).parent.parent
    modules = [*(root / _SUPERVISOR).glob("*.py"), *(root / name for name in _NEEDED)]
    names = [module.relative_to(root) for module in modules]
    packages = {folder / "__init__.py" for name in names for folder in name.parents[:-1]}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in {*names, *packages}:
            archive.writestr(str(name), (root / name).read_bytes())
    return packed.getvalue()


def packed(
    code: str, workspace: Path | None, limits: Limits, *, packages: bool
) -> dict[str, bytes]:
    """The request and the workspace's files, by the names that `messages` gives them."""
    request = Request(code=code, workspace=None, limits=limits, packages=packages)
    files = {messages.REQUEST: messages.encode(request)}
    if workspace:
        workspace.mkdir(parents=True, exist_ok=True)
        for path in sorted(workspace.rglob("*")):
            if path.is_file() and not path.is_symlink():
                files[f"{messages.WORKSPACE}/{path.relative_to(workspace)}"] = path.read_bytes()
    return files


def as_text(files: Mapping[str, bytes]) -> dict[str, str]:
    """`files` with their contents in base64."""
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def checked_result(reply: bytes, backend: str) -> ToolResult:
    """The result that a supervisor of `backend` reports.

    Raises:
        SandboxError: It reports a failure, or sends something else.
    """
    try:
        result = messages.result_of(_REPLY.validate_json(reply), backend)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SandboxError(f"the sandbox sent no reply of ours: {first['msg'].lower()}") from None
    if any(file.size_bytes < 0 for file in result.written):
        raise SandboxError("the sandbox sent no reply of ours: a file of less than 0 bytes")
    return result


def without_reply(status: ToolStatus, reason: str, limits: Limits) -> Reply:
    """What is known of a run that took its supervisor down."""
    result = ToolResult(
        code="",
        status=status,
        exit_code=None,
        stdout="",
        stderr=f"[{reason}]",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        cpu_seconds=None,
        peak_memory_bytes=None,
        seconds=limits.wall_seconds,
        tier="",
    )
    return Reply(result=result)


def take_back(reply: Reply, workspace: Path | None, *, code: str, tier: str) -> ToolResult:
    """Make the workspace what the reply says it is; nothing outside it can be meant.

    Raises:
        SandboxError: A name or a content is not what it claims to be.
    """
    result = replace(reply.result, code=code, tier=tier)
    if workspace is None:
        return result
    for name in result.removed:
        (workspace / _plain(name)).unlink(missing_ok=True)
    begin = 0
    for file in result.written:
        data = reply.contents[begin : begin + file.size_bytes]
        begin += file.size_bytes
        _put(workspace / _plain(file.name), file, data)
    for folder in sorted((p for p in workspace.rglob("*") if p.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return result


def _plain(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or not name.isprintable():
        raise SandboxError(f"the sandbox names a file {name[:80]!r}, which is no plain name")
    return name


def _put(path: Path, file: Artifact, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != file.sha256:
        raise SandboxError(f"the sandbox sent {file.name!r} with another content than it says")
    if path.is_dir():
        path.rmdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
