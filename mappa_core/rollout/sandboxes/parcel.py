"""What a supervisor elsewhere is sent, and how its reply is brought back; for `fusion`, `docker`.

A supervisor that runs where MAPPA is not installed gets its own source, the request and the files
of the workspace. What it answers comes from behind walls that a program may have broken: names are
checked to be plain, contents to have the hash they claim.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

import mappa_core
from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Artifact, Limits, ToolResult, ToolStatus
from mappa_core.rollout.sandboxes import remote, wire

_SHIPPED = (
    "__init__.py",
    "core/__init__.py",
    "core/errors.py",
    "core/records/__init__.py",
    "core/records/scores.py",
    "core/records/updates.py",
    "core/records/episodes.py",
    "core/records/runs.py",
    "core/records/tools.py",
    "core/streams.py",
    "rollout/__init__.py",
    "rollout/sandboxes/__init__.py",
    "rollout/sandboxes/cgroups.py",
    "rollout/sandboxes/container.py",
    "rollout/sandboxes/files.py",
    "rollout/sandboxes/footprints.py",
    "rollout/sandboxes/landlock.py",
    "rollout/sandboxes/launch.py",
    "rollout/sandboxes/linux.py",
    "rollout/sandboxes/programs.py",
    "rollout/sandboxes/remote.py",
    "rollout/sandboxes/rooms.py",
    "rollout/sandboxes/seccomp.py",
    "rollout/sandboxes/supervisor.py",
    "rollout/sandboxes/system_calls.py",
    "rollout/sandboxes/unsafe.py",
    "rollout/sandboxes/verdicts.py",
    "rollout/sandboxes/wire.py",
)
"""All that `remote` and `container` import; standard library alone."""
_REPLY = TypeAdapter[ToolResult | wire.Failure](ToolResult | wire.Failure)


@cache
def source() -> Mapping[str, bytes]:
    """The supervisor's own files, by their path below the package's parent."""
    package = Path(mappa_core.__file__).parent
    return {f"mappa_core/{name}": (package / name).read_bytes() for name in _SHIPPED}


def packed(
    code: str, workspace: Path | None, limits: Limits, *, packages: bool
) -> dict[str, bytes]:
    """The request and the workspace's files, by the names `remote` expects them under."""
    request = {"code": code, "workspace": None, "limits": asdict(limits), "packages": packages}
    files = {remote.REQUEST: json.dumps(request).encode("ascii")}
    if workspace:
        workspace.mkdir(parents=True, exist_ok=True)
        for path in sorted(workspace.rglob("*")):
            if path.is_file() and not path.is_symlink():
                files[f"{remote.WORKSPACE}/{path.relative_to(workspace)}"] = path.read_bytes()
    return files


def as_text(files: Mapping[str, bytes]) -> dict[str, str]:
    """The same in base64."""
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def reply_in(text: bytes) -> ToolResult | wire.Failure:
    """The reply of a supervisor elsewhere.

    Raises:
        SandboxError: It is none.
    """
    try:
        reply = _REPLY.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SandboxError(f"the sandbox sent no reply of ours: {first['msg'].lower()}") from None
    if isinstance(reply, ToolResult) and any(file.size_bytes < 0 for file in reply.written):
        raise SandboxError("the sandbox sent no reply of ours: a file of less than 0 bytes")
    return reply


def bring_back(result: ToolResult, contents: bytes, workspace: Path) -> None:
    """Make the workspace what the reply says it is; nothing outside it can be meant.

    Args:
        result: With the names, sizes and hashes of what was written.
        contents: The bytes of those files, one after the other.
        workspace: The folder to change.

    Raises:
        SandboxError: A name or a content is not what it claims to be.
    """
    for name in result.removed:
        (workspace / _plain(name)).unlink(missing_ok=True)
    begin = 0
    for file in result.written:
        data = contents[begin : begin + file.size_bytes]
        begin += file.size_bytes
        _put(workspace / _plain(file.name), file, data)
    for folder in sorted((p for p in workspace.rglob("*") if p.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


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


def without_reply(status: ToolStatus, reason: str, limits: Limits) -> ToolResult:
    """What is known of a run that took its supervisor down."""
    return ToolResult(
        code="",
        status=status,
        exit_code=None,
        stdout="",
        stderr=f"[{reason}]",
        stdout_omitted_bytes=0,
        stderr_omitted_bytes=0,
        seconds=limits.wall_seconds,
        cpu_seconds=None,
        peak_memory_bytes=None,
        tier="",
    )
