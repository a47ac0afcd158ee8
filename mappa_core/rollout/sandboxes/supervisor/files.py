"""Files in and out of a workspace: bytes that are copied and hashed, never opened as anything.

What a program leaves behind is hostile: links to other people's files, pipes that block
their reader, sparse terabytes, names made to deceive. Only regular files with plain names pass.
Nothing runs any more when files are collected.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from mappa_core.core.records.tools import Artifact, Limits, RejectedFile

MAX_FILES = 128
MAX_REJECTED = 32
_MAX_NAME_BYTES = 200
_MAX_DEPTH = 8
_CHUNK_BYTES = 2**18
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a run left in its workspace."""

    files: tuple[Artifact, ...]
    """Every accepted file, changed or not, by name."""
    rejected: tuple[RejectedFile, ...]

    def changed(self, before: Mapping[str, Artifact], touched: Set[str]) -> tuple[Artifact, ...]:
        """The files that are not as `before`, and those of the names `touched`."""
        return tuple(
            file for file in self.files if file.name in touched or before.get(file.name) != file
        )


def copy_in(source: Path, target: Path) -> dict[str, Artifact]:
    """Copy a workspace's regular files into an empty folder; each by its name.

    Raises:
        OSError: They cannot be read or do not fit.
    """
    copied: dict[str, Artifact] = {}
    for name, path in _walk(source):
        if path.is_symlink() or not path.is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        digest = _copy(path, target / name)
        size = (target / name).stat().st_size
        copied[name] = Artifact(name=name, size_bytes=size, sha256=digest)
    return copied


def collect(
    folder: Path, before: Mapping[str, Artifact], limits: Limits, *, leave_out: str
) -> Collected:
    """Hash what is in `folder` and say what is not acceptable there, and why.

    What was there before and still is stays, whatever its size: the program did not make it.

    Args:
        folder: The workspace, nothing running in it.
        before: What was copied into it, by name.
        limits: Bounds on each file that is new, and on all files together.
        leave_out: The name of the program itself.
    """
    same = _unchanged(folder, before)
    left_bytes = limits.workspace_bytes - sum(file.size_bytes for file in same.values())
    files: list[Artifact] = []
    rejected: list[RejectedFile] = []
    for name, path in _walk(folder):
        if name.split("/")[0] == leave_out:
            continue
        if name in same:
            files.append(same[name])
            continue
        found: Artifact | str = f"more than {MAX_FILES} files"
        if len(files) < MAX_FILES:
            found = _accepted(path, name, limits.file_bytes, left_bytes)
        if isinstance(found, Artifact):
            files.append(found)
            left_bytes -= found.size_bytes
        elif len(rejected) < MAX_REJECTED:
            rejected.append(RejectedFile(name=_printable(name), reason=found))
    return Collected(files=tuple(files), rejected=tuple(rejected))


def write_back(
    folder: Path, workspace: Path, left: Collected, before: Mapping[str, Artifact]
) -> None:
    """Make the workspace hold exactly what was left; each file appears whole or not at all.

    Raises:
        OSError: The workspace cannot be written.
    """
    # Removals first: a folder may have become a file of the same name, or the other way round.
    for name in before.keys() - {artifact.name for artifact in left.files}:
        _remove_with_empty_parents(workspace, name)
    for artifact in left.files:
        if before.get(artifact.name) != artifact:
            target = workspace / artifact.name
            target.parent.mkdir(parents=True, exist_ok=True)
            half = target.with_name(f".{os.getpid()}.part")
            _copy(folder / artifact.name, half)
            half.replace(target)


def _remove_with_empty_parents(workspace: Path, name: str) -> None:
    (workspace / name).unlink(missing_ok=True)
    for parent in Path(name).parents[:-1]:
        with contextlib.suppress(OSError):  # not empty
            (workspace / parent).rmdir()


def _unchanged(folder: Path, before: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """What of `before` is still as it was; links and the like are not what they stand for."""
    return {
        name: before[name]
        for name, path in _walk(folder)
        if name in before and _is(path, before[name])
    }


def _is(path: Path, artifact: Artifact) -> bool:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != artifact.size_bytes:
            return False
        return _digest(path) == artifact.sha256
    except OSError:
        return False


def _digest(path: Path) -> str:
    with open(_open(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _accepted(path: Path, name: str, limit_bytes: int, left_bytes: int) -> Artifact | str:
    """The file, or why it is not accepted."""
    try:
        status = path.lstat()
        if objection := _objection(name, status, limit_bytes, left_bytes):
            return objection
        return Artifact(name=name, size_bytes=status.st_size, sha256=_digest(path))
    except OSError as error:
        return error.strerror or "unreadable"


def _objection(name: str, status: os.stat_result, limit_bytes: int, left_bytes: int) -> str | None:
    kind, size = stat.S_IFMT(status.st_mode), status.st_size
    if kind == stat.S_IFDIR:
        return f"over {_MAX_DEPTH} folders deep"
    if kind != stat.S_IFREG:
        kinds = {stat.S_IFLNK: "link", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
        return f"a {kinds.get(kind, 'device')}, not a regular file"
    if status.st_nlink > 1:
        return "has several names (hard links)"
    if size > limit_bytes:
        return f"{_mib(size)}, and one file may have {_mib(limit_bytes)}"
    if size > left_bytes:
        return f"{_mib(size)}, and there is room for {_mib(left_bytes)}"
    if not name.isprintable() or "\\" in name:
        return "its name has characters that do not print or could deceive"
    if len(os.fsencode(name)) > _MAX_NAME_BYTES or name.count("/") > _MAX_DEPTH:
        return f"its name is over {_MAX_NAME_BYTES} bytes or {_MAX_DEPTH} folders deep"
    return None


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.1f} MiB"


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of what is below `root`, sorted, but for folders; links are not followed.

    A folder that lies too deep for anything in it to be accepted stands for all that is in it.
    """
    for folder, folders, names in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        # A link to a folder is listed among the folders, yet must be judged as a link.
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        deep = [name for name in folders if depth >= _MAX_DEPTH and name not in links]
        folders[:] = sorted(set(folders) - set(deep))
        for name in sorted(names + links + deep):
            path = Path(folder) / name
            yield str(path.relative_to(root)), path


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _copy(source: Path, target: Path) -> str:
    digest = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        open(_open(source), "rb") as reader,
        open(os.open(target, flags, 0o644), "wb") as writer,  # noqa: PTH123
    ):
        while chunk := reader.read(_CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
    return digest.hexdigest()


def _printable(name: str) -> str:
    shown = os.fsencode(name)[:_MAX_NAME_BYTES].decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def make_readable(folder: Path) -> None:
    """Undo what a program did to the permissions of its own folders; links are not followed."""
    waiting = [str(folder)]
    while waiting:  # not by recursion: a program can nest folders deeper than Python can recurse
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    Path(entry.path).chmod(0o700)
                    waiting.append(entry.path)
