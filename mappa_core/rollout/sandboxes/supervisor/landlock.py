"""The tier for machines without bubblewrap, e.g. inside a default Docker container.

Landlock lets the process read /usr and its Python and write its workspace, and keeps it from
signalling or tracing anything outside; seccomp takes away every socket, and what would reach the
modes and times of files and the settings of processes. There are no namespaces: the tree is found
and killed through its ancestry, or its control group where there is one.
"""

import ctypes
import os
import struct
from pathlib import Path
from typing import NoReturn

from mappa_core.rollout.sandboxes.supervisor import libc
from mappa_core.rollout.sandboxes.supervisor.seccomp import deny_filter
from mappa_core.rollout.sandboxes.supervisor.tier import Launch, Tier

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_RIGHTS_BY_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many file rights each version of Landlock knows; later ones know as many."""
_DEVICE_NODES_AND_SOCKETS = 1 << 6 | 1 << 9 | 1 << 11
_TCP_VERSION, _BIND_AND_CONNECT_TCP = 4, 0b11
_SCOPE_VERSION, _ABSTRACT_SOCKETS_AND_SIGNALS = 6, 0b11

_READ = _EXECUTE | _READ_FILE | _READ_DIR
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _execute(launch: Launch) -> NoReturn:
    folder = launch.folder
    os.chdir(folder.workspace)
    _restrict_files(
        readable=[
            *map(Path, _SYSTEM),
            folder.python.home,
            folder.environment,
            *folder.packages.values(),
        ],
        writable=[folder.workspace, folder.scratch],
    )
    rules = deny_filter(namespaces=False)
    program = _FilterProgram(length=len(rules) // 8, filter=rules)
    libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))
    launch.become_python()


def available() -> bool:
    """Whether this kernel has Landlock switched on."""
    try:
        return libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG) > 0
    except OSError:
        return False


def _restrict_files(*, readable: list[Path], writable: list[Path]) -> None:
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    everything = (1 << _RIGHTS_BY_VERSION.get(version, max(_RIGHTS_BY_VERSION.values()))) - 1
    tcp = _BIND_AND_CONNECT_TCP if version >= _TCP_VERSION else 0
    scoped = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPE_VERSION else 0
    # An older kernel takes a shorter structure only if what it lacks is zero, as it is here.
    attributes = struct.pack("=QQQ", everything, tcp, scoped)
    ruleset = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    for path in readable:
        _allow(ruleset, path, _READ)
    for path in writable:
        _allow(ruleset, path, everything & ~_DEVICE_NODES_AND_SOCKETS)
    for path in map(Path, _DEVICES):
        _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _TRUNCATE) & everything)
    libc.syscall(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    if not path.exists():
        return
    on_files = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
    allowed = rights if path.is_dir() else rights & on_files
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, parent), 0)
    os.close(parent)


TIER = Tier(name="landlock", seccomp=True, execute=_execute)
