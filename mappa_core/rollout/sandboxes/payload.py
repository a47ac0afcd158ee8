"""What is put into a container, or sent to a SandboxFusion server, and what is taken back.

    our supervisor's source, the request, the workspace's files  ─▶  a result, the files it names

What comes back is from behind walls that a program may have broken: it is checked to be a result,
names to be plain, contents to have the hash they claim.
"""

import ast
import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter, ValidationError

import mappa_core
from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Artifact, Limits, ToolResult, ToolStatus
from mappa_core.rollout.sandboxes.supervisor import messages
from mappa_core.rollout.sandboxes.supervisor.messages import Failure, Request

_ENTRYPOINT = "mappa_core.rollout.sandboxes.supervisor.entrypoint"
_REPLY = TypeAdapter[ToolResult | Failure](ToolResult | Failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a supervisor elsewhere sent back."""

    result: ToolResult
    contents: bytes = b""
    """The bytes of the files that were written, one after the other."""


@cache
def source() -> Mapping[str, bytes]:
    """The files of the supervisor's source, by their path below the package's parent."""
    root = Path(mappa_core.__file__).parent.parent
    found: dict[str, bytes] = {}
    waiting = [_ENTRYPOINT]
    while waiting:
        path = _path_of(root, waiting.pop())
        if path is not None and (name := str(path.relative_to(root))) not in found:
            found[name] = path.read_bytes()
            waiting += _imported(found[name])
    return found


def _path_of(root: Path, module: str) -> Path | None:
    """The file of a module; None where `module` is a name in one."""
    path = root / module.replace(".", "/")
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _imported(text: bytes) -> Iterator[str]:
    """The modules of ours that a source imports, the packages that they are in, and names."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(mappa_core.__name__):
            parts = str(node.module).split(".")
            yield from (".".join(parts[: n + 1]) for n in range(len(parts)))
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


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
    """The same in base64."""
    return {name: base64.b64encode(data).decode() for name, data in files.items()}


def checked_result(text: bytes, backend: str) -> ToolResult:
    """The result that a supervisor of `backend` reports.

    Raises:
        SandboxError: It reports a failure, or sends something else.
    """
    try:
        result = messages.result_of(_REPLY.validate_json(text), backend)
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
        seconds=limits.wall_seconds,
        cpu_seconds=None,
        peak_memory_bytes=None,
        tier="",
    )
    return Reply(result=result)


def take_back(reply: Reply, workspace: Path | None, *, code: str, tier: str) -> ToolResult:
    """Make the workspace what the reply says it is; nothing outside it can be meant.

    Args:
        reply: Of the run.
        workspace: The folder to change, if there is one.
        code: What was run.
        tier: Which isolation held.

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
