"""The strongest tier: own user, mount, process, network, IPC and host-name namespaces.

The program sees /usr and a Python standard library read-only, an empty /tmp, its workspace, and
nothing else; it is process 2 or so of a machine without a network.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

from mappa_core.core.errors import SandboxUnavailable
from mappa_core.rollout.sandboxes.supervisor import tier
from mappa_core.rollout.sandboxes.supervisor.run_folder import RunFolder
from mappa_core.rollout.sandboxes.supervisor.seccomp import deny_filter
from mappa_core.rollout.sandboxes.supervisor.tier import Launch, Tier

_PYTHON, _ENVIRONMENT, _WORKSPACE = "/opt/python", "/opt/environment", "/workspace"
_STARTED = 3
"""Descriptor that tells the supervisor that the walls stand; one digit, for /bin/sh."""
_SEARCHED = "/usr/local/bin:/usr/bin:/bin"
_SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SHARED_MEMORY_BYTES = 16 * 2**20
_NAMESPACES = (
    "--unshare-all",
    "--unshare-user",
    *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
    *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"),
)


def _execute(launch: Launch) -> NoReturn:
    # First of all, lest another file take the number.
    os.dup2(launch.started, _STARTED)
    os.set_inheritable(_STARTED, True)
    python = TIER.python_inside(launch.folder)
    rules = _readable(deny_filter(namespaces=True))
    options = [*_NAMESPACES, *_file_system(launch.folder), "--seccomp", str(rules)]
    for name, value in launch.variables("/tmp", f"{_ENVIRONMENT}/bin", python).items():  # noqa: S108
        options += ["--setenv", name, value]
    # Passed through a file, because the program can read the command line of process 1.
    listed = _readable(b"".join(os.fsencode(option) + b"\0" for option in options))
    program = [f"{_ENVIRONMENT}/bin/python", *tier.ARGUMENTS]
    announce = ["/bin/sh", "-c", f'echo >&{_STARTED}; exec "$@" {_STARTED}>&-', "sh", *program]
    binary = shutil.which("bwrap", path=_SEARCHED)
    if binary is None:
        raise SandboxUnavailable("bwrap is not installed")
    os.execve(binary, [binary, "--args", str(listed), "--", *announce], {})  # noqa: S606


def _file_system(folder: RunFolder) -> list[str]:
    return [
        *("--ro-bind", "/usr", "/usr"),
        *_system_folders(),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *("--ro-bind", str(folder.python.home), _PYTHON),
        *("--ro-bind", str(folder.environment), _ENVIRONMENT),
        *("--proc", "/proc", "--ro-bind", "/dev/null", "/proc/cmdline"),
        *("--dev", "/dev", "--size", str(_SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"),  # noqa: S108
        *("--remount-ro", "/dev"),
        *("--bind", str(folder.scratch), "/tmp"),  # noqa: S108
        *("--bind", str(folder.workspace), _WORKSPACE, "--chdir", _WORKSPACE),
        *("--remount-ro", "/"),
    ]


def _system_folders() -> list[str]:
    """/bin and /lib as this distribution has them: links into /usr, or folders."""
    options: list[str] = []
    for path in (Path("/") / name for name in _SYSTEM_FOLDERS):
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    return options


def _readable(data: bytes) -> int:
    """A descriptor to read `data` from, which the started program inherits."""
    descriptor = os.memfd_create("options", 0)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


TIER = Tier(
    name="bubblewrap",
    seccomp=True,
    execute=_execute,
    needs_private_folder=True,
    python_home=Path(_PYTHON),
    signal_base=128,
)
