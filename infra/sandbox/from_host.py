r"""Writes a tar of a sandbox image made of this machine's own Python, for `docker import`.

    python infra/sandbox/from_host.py \
        | docker import --change 'ENV LD_LIBRARY_PATH=/usr/local/lib' - mappa-sandbox:local

For machines that reach no registry, such as CI. It holds the running interpreter, the libraries of
`sandbox.runtime: data-science` as they are installed beside it, the shared objects these need, and
a few tools; nothing else of the machine.
"""

import io
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from mappa_core.rollout.sandboxes.packages import DATA_SCIENCE, importable
from mappa_core.rollout.sandboxes.supervisor.run_folder import our_interpreter

_TOOLS = ("cat", "echo", "ls", "mkdir", "rm", "sh", "sleep", "true")
_PREFIX = "usr/local"
_PACKAGES = ("dist-packages", "site-packages")
_LEFT_OUT = {*_PACKAGES, "test", "tests", "idlelib", "ensurepip", "tkinter", "turtledemo"}
_STATIC = re.compile(r"config-.*|.*\.a")
_FOLDERS = ("dev", "etc", "proc", "sys", "tmp", "mappa")
_LDD_AT_ONCE = 200


def write_image(output: BinaryIO) -> None:
    """Write the root file system as an uncompressed tar."""
    files = dict(_contents())
    objects = [path for path in files.values() if _is_elf(path)]
    # One tree per library path, so that the loader finds them where it looks on this machine.
    files |= {str(path).lstrip("/"): path for path in _needed(objects)}
    with tarfile.open(fileobj=output, mode="w|", dereference=True) as tar:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder, io.BytesIO())
        for name, path in sorted(files.items()):
            tar.add(path, arcname=name, recursive=False, filter=_plain)


def _contents() -> Iterator[tuple[str, Path]]:
    python = our_interpreter()
    yield f"{_PREFIX}/bin/{python.name}", (python.home / "bin" / python.name).resolve()
    yield f"{_PREFIX}/bin/python3", (python.home / "bin" / python.name).resolve()
    for library in (python.home / "lib").glob("libpython3*.so*"):
        yield f"{_PREFIX}/lib/{library.name}", library
    library = python.home / "lib" / python.name
    yield from _tree(library, f"{_PREFIX}/lib/{python.name}", _LEFT_OUT)
    packages = f"{_PREFIX}/lib/{python.name}/{_packages_folder(library)}"
    for name, path in importable(DATA_SCIENCE).items():
        yield from _tree(path, f"{packages}/{name}", set())
    for tool in _TOOLS:
        yield f"usr/bin/{tool}", Path(shutil.which(tool) or tool).resolve()
        yield f"bin/{tool}", Path(shutil.which(tool) or tool).resolve()


def _packages_folder(library: Path) -> str:
    """Debian's Python looks for packages under a name of its own."""
    debian, usual = _PACKAGES
    return debian if debian in (library / "site.py").read_text() else usual


def _tree(root: Path, name: str, left_out: set[str]) -> Iterator[tuple[str, Path]]:
    if root.is_file():
        yield name, root
        return
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        if parts[0] in left_out or any(_STATIC.fullmatch(part) for part in parts):
            continue
        if path.is_file():
            yield f"{name}/{path.relative_to(root)}", path


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _needed(objects: Iterable[Path]) -> set[Path]:
    """The shared objects of the system that `objects` are linked to, loader included."""
    waiting, found = [str(path) for path in objects], set[Path]()
    environment: Mapping[str, str] = {"LD_LIBRARY_PATH": str(our_interpreter().home / "lib")}
    for start in range(0, len(waiting), _LDD_AT_ONCE):
        listed = subprocess.run(
            ["ldd", *waiting[start : start + _LDD_AT_ONCE]],
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": "/usr/bin:/bin", **environment},
        )
        found |= {Path(path) for path in re.findall(r"(?:=> |\t)(/\S+) \(0x", listed.stdout)}
    system = (Path("/lib"), Path("/lib64"), Path("/usr/lib"))
    return {path for path in found if any(path.is_relative_to(folder) for folder in system)}


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


if __name__ == "__main__":
    write_image(sys.stdout.buffer)
