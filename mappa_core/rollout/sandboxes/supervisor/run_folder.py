"""The folder one run works in: an empty workspace of bounded size that vanishes with the run.

A *private* folder is a memory file system in a mount namespace of the supervisor's own: it has a
quota of bytes and inodes, and the kernel takes it away with the supervisor, whatever happens.
Where a machine forbids that, a *plain* one is a folder in /tmp, without a quota of its own.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes.supervisor import files, libc

PROGRAM = "main.py"
_PREFIX = "mappa-run-"
_TMP = Path("/tmp")  # noqa: S108 (covered by a mount of our own, or used through mkdtemp)
_SLACK_BYTES, _SLACK_INODES = 2 * 2**20, 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python a program runs on: a bare virtual environment beside a standard library."""

    home: Path
    """Prefix of the installation that has the standard library."""
    name: str
    """Its program, e.g. `python3.11`, in `home/bin`."""
    shared: bool
    """Built as a shared library, which has to be found wherever `home` is shown."""

    @property
    def variables(self) -> dict[str, str]:
        """What it needs in its environment."""
        return {"LD_LIBRARY_PATH": str(self.home / "lib")} if self.shared else {}


def our_interpreter() -> Interpreter:
    """The installation this very process runs on, found behind any virtual environment."""
    return Interpreter(
        home=Path(sys.base_prefix),
        name=f"python{sys.version_info.major}.{sys.version_info.minor}",
        shared=bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A folder for one run."""

    path: Path
    private: bool
    python: Interpreter
    """Where the interpreter can be reached from here, by any user."""
    packages: Mapping[str, Path]
    """Entries of site-packages that the program may import from."""

    @property
    def workspace(self) -> Path:
        """Where the program runs and may write."""
        return self.path / "workspace"

    @property
    def scratch(self) -> Path:
        """A place for temporary files."""
        return self.path / "tmp"

    @property
    def environment(self) -> Path:
        """The bare virtual environment: the allowed packages, `exit()` and friends."""
        return self.path / "environment"

    @property
    def site_packages(self) -> Path:
        """Where third-party packages are found."""
        return self.environment / "lib" / self.python.name / "site-packages"

    def fill(self, code: bytes, python_inside: Interpreter, owner: int) -> None:
        """Put the program in, and the interpreter as it will see it; user `owner` may write.

        Raises:
            OSError: It does not fit.
        """
        if self.packages and not self.private:
            self.site_packages.mkdir(parents=True)
            for name, path in self.packages.items():
                (self.site_packages / name).symlink_to(path)
        binaries = self.environment / "bin"
        binaries.mkdir(parents=True)
        (binaries / "python").symlink_to(python_inside.home / "bin" / python_inside.name)
        (binaries / "python3").symlink_to("python")
        (self.environment / "pyvenv.cfg").write_text(
            f"home = {python_inside.home / 'bin'}\ninclude-system-site-packages = false\n"
        )
        (self.workspace / PROGRAM).write_bytes(code)
        if owner != os.geteuid():
            for path in (self.workspace, self.scratch, *self.workspace.rglob("*")):
                os.chown(path, owner, owner, follow_symlinks=False)

    def remove(self) -> None:
        """Take a plain folder away; a private one goes with the process."""
        if not self.private:
            _remove(self.path)


def make_plain(python: Interpreter, packages: Mapping[str, Path]) -> RunFolder:
    """Make an empty folder in /tmp, for a program on `python` that may import `packages`.

    Raises:
        OSError: The machine does not allow it.
    """
    path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_TMP))
    path.chmod(0o711)
    folder = RunFolder(path=path, private=False, python=python, packages=packages)
    folder.workspace.mkdir(mode=0o700)
    folder.scratch.mkdir(mode=0o700)
    return folder


def make_private(
    python: Interpreter, packages: Mapping[str, Path], limits: Limits, code_bytes: int
) -> RunFolder:
    """Make an empty memory file system in mounts of this process's own.

    It has room for a program of `code_bytes` and for the files that `limits` allow.

    Raises:
        OSError: The machine does not allow it.
    """
    libc.enter_private_mounts()
    library = by_descriptor(python.home)
    opened = {name: by_descriptor(path) for name, path in packages.items()}
    libc.mount_tmpfs(_TMP, "size=1m,nr_inodes=256,mode=0755")
    inside = replace(python, home=_TMP / "python")
    folder = RunFolder(path=_TMP, private=True, python=inside, packages=packages)
    for path in (folder.workspace, folder.scratch, folder.python.home):
        path.mkdir()
    libc.bind(library, folder.python.home)
    for name, descriptor in opened.items():
        _show(descriptor, folder.site_packages / name)
    size = limits.workspace_bytes + code_bytes + _SLACK_BYTES
    inodes = limits.inodes + _SLACK_INODES
    for path in (folder.workspace, folder.scratch):
        libc.mount_tmpfs(path, f"size={size},nr_inodes={inodes},mode=0700")
    return folder


def can_make_private() -> bool:
    """Whether this machine lets us make private folders."""
    return libc.works_in_child(libc.enter_private_mounts)


def by_descriptor(path: Path, flags: int = 0) -> Path:
    """A way to `path` that stays when mounts of ours cover it, e.g. because it is below /tmp."""
    return Path(f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_CLOEXEC | flags)}")


def _show(descriptor: Path, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if descriptor.is_dir():
        path.mkdir()
    else:
        path.touch()
    libc.bind(descriptor, path)


def sweep() -> None:
    """Remove our plain folders whose supervisor is dead."""
    for path in _TMP.glob(f"{_PREFIX}[0-9]*-*"):
        pid = path.name.removeprefix(_PREFIX).split("-")[0]
        if path.stat().st_uid == os.geteuid() and not Path(f"/proc/{pid}").exists():
            _remove(path)


def _remove(path: Path) -> None:
    files.make_readable(path)
    # rm, because a program can nest folders deeper than shutil can recurse.
    subprocess.run([shutil.which("rm") or "/bin/rm", "-rf", "--", path], check=False)
