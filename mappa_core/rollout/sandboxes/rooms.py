"""The place one run works in: an empty workspace of bounded size that vanishes with the run.

A *private* room is a memory file system in a mount namespace of the supervisor's own: it has a
quota of bytes and inodes, and the kernel takes it away with the supervisor, whatever happens.
Where a machine forbids that, a *plain* room is a folder in /tmp, without a quota of its own.
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
from mappa_core.rollout.sandboxes import files, linux

PROGRAM = "main.py"
_PREFIX = "mappa-room-"
_SHED = Path("/tmp")  # noqa: S108 (covered by a mount of our own, or used through mkdtemp)
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

    def moved(self, home: Path) -> "Interpreter":
        """The same, where `home` is its prefix."""
        return replace(self, home=home)

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
class Room:
    """A workspace ready for one run."""

    folder: Path
    private: bool
    python: Interpreter
    """Where the interpreter can be reached from here, by anybody."""
    packages: Mapping[str, Path]
    """Entries of site-packages that the program may import from."""

    @property
    def workspace(self) -> Path:
        """Where the program runs and may write."""
        return self.folder / "workspace"

    @property
    def scratch(self) -> Path:
        """A place for temporary files."""
        return self.folder / "tmp"

    @property
    def environment(self) -> Path:
        """The bare virtual environment: the allowed packages, `exit()` and friends."""
        return self.folder / "environment"

    @property
    def site_packages(self) -> Path:
        """Where third-party packages are found."""
        return self.environment / "lib" / self.python.name / "site-packages"

    def furnish(self, code: bytes, python_inside: Interpreter, owner: int) -> None:
        """Put the program and the interpreter's environment in; `owner` may write.

        Args:
            code: The program.
            python_inside: The interpreter as the program will see it.
            owner: User who will run it.

        Raises:
            OSError: It does not fit.
        """
        if self.packages and not self.private:
            self.site_packages.mkdir(parents=True)
            for name, path in self.packages.items():
                (self.site_packages / name).symlink_to(path)
        binary = self.environment / "bin"
        binary.mkdir(parents=True)
        (binary / "python").symlink_to(python_inside.home / "bin" / python_inside.name)
        (binary / "python3").symlink_to("python")
        (self.environment / "pyvenv.cfg").write_text(
            f"home = {python_inside.home / 'bin'}\ninclude-system-site-packages = false\n"
        )
        (self.workspace / PROGRAM).write_bytes(code)
        if owner != os.geteuid():
            for path in (self.workspace, self.scratch, *self.workspace.rglob("*")):
                os.chown(path, owner, owner, follow_symlinks=False)

    def close(self) -> None:
        """Take a plain room away; a private one goes with the process."""
        if not self.private:
            _remove(self.folder)


def open_room(
    python: Interpreter,
    packages: Mapping[str, Path],
    limits: Limits,
    code_bytes: int,
    *,
    private: bool,
) -> Room:
    """An empty room.

    Args:
        python: What will run the program.
        packages: What it may import beside the standard library.
        limits: Size and number of files, which only a private room can hold a program to.
        code_bytes: Size of the program, which comes on top.
        private: Which kind.

    Raises:
        OSError: The machine does not allow it.
    """
    if not private:
        return _plain_room(python, packages)
    linux.enter_private_mounts()
    # Through descriptors, because they may themselves lie below /tmp.
    library = _reached(python.home)
    reached = {name: _reached(path) for name, path in packages.items()}
    linux.mount_tmpfs(_SHED, "size=1m,nr_inodes=256,mode=0755")
    room = Room(
        folder=_SHED, private=True, python=python.moved(_SHED / "python"), packages=packages
    )
    for folder in (room.workspace, room.scratch, room.python.home):
        folder.mkdir()
    linux.bind(library, room.python.home)
    if reached:
        _show_packages(room, reached)
    size = limits.workspace_bytes + code_bytes + _SLACK_BYTES
    inodes = limits.inodes + _SLACK_INODES
    linux.mount_tmpfs(room.workspace, f"size={size},nr_inodes={inodes},mode=0700")
    linux.mount_tmpfs(room.scratch, f"size={size},nr_inodes={inodes},mode=0700")
    return room


def can_be_private() -> bool:
    """Whether this machine lets us make private rooms, by trying it in a child."""
    pid = os.fork()
    if not pid:
        try:
            linux.enter_private_mounts()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _reached(path: Path) -> str:
    return f"/proc/self/fd/{os.open(path, os.O_PATH | os.O_CLOEXEC)}"


def _show_packages(room: Room, reached: Mapping[str, str]) -> None:
    room.site_packages.mkdir(parents=True)
    for name, descriptor in reached.items():
        shown = room.site_packages / name
        if Path(descriptor).is_dir():
            shown.mkdir()
        else:
            shown.touch()
        linux.bind(descriptor, shown)


def _plain_room(python: Interpreter, packages: Mapping[str, Path]) -> Room:
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_SHED))
    folder.chmod(0o711)
    room = Room(folder=folder, private=False, python=python, packages=packages)
    for path in (room.workspace, room.scratch):
        path.mkdir(mode=0o700)
    return room


def sweep() -> None:
    """Remove our plain rooms whose supervisor is dead."""
    for folder in _SHED.glob(f"{_PREFIX}[0-9]*-*"):
        pid = folder.name.removeprefix(_PREFIX).split("-")[0]
        if folder.stat().st_uid == os.geteuid() and not Path(f"/proc/{pid}").exists():
            _remove(folder)


def _remove(folder: Path) -> None:
    files.make_readable(folder)
    # rm, because a program can nest folders deeper than shutil can recurse.
    subprocess.run([shutil.which("rm") or "/bin/rm", "-rf", "--", folder], check=False)
