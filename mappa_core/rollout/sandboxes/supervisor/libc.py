"""The few Linux calls the standard library has no name for; all raise `OSError` where refused."""

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_PR_SET_SECUREBITS, _NO_ROOT_FOR_EVER = 28, 0b11
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_IN_ONESHOT = 1 << 31
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """Make a raw system call; integers are passed as longs, the rest as ctypes passes them."""
    longs = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    return _checked(_libc.syscall(ctypes.c_long(number), *longs))


def prctl(option: int, value: int = 1, pointer: object = None) -> None:
    """Call `prctl(2)` with a number and, where the option takes one, a pointer."""
    zero = ctypes.c_ulong(0)
    _checked(_libc.prctl(option, ctypes.c_ulong(value), pointer or zero, zero, zero))


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent exits."""
    prctl(_PR_SET_CHILD_SUBREAPER)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def forbid_new_privileges() -> None:
    """Make set-user-id programs ordinary ones, for this process and what it starts."""
    prctl(_PR_SET_NO_NEW_PRIVS)


def lose_root_at_exec() -> None:
    """Make user 0 a user like any other from the next `execve` on."""
    prctl(_PR_SET_SECUREBITS, _NO_ROOT_FOR_EVER)


def enter_private_mounts() -> None:
    """Mount for this process alone from now on; an ordinary user gets a user namespace first."""
    uid, gid = os.geteuid(), os.getegid()
    ordinary = uid != 0
    _checked(_libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if ordinary else 0)))
    if ordinary:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)


def mount_tmpfs(target: Path, options: str) -> None:
    """Mount an empty memory file system, e.g. with `size=65536,nr_inodes=64,mode=0755`."""
    _mount("tmpfs", target, options, _MS_NOSUID | _MS_NODEV)


def bind(source: Path, target: Path) -> None:
    """Show the file or directory `source` at `target` too."""
    _mount(source, target, None, _MS_BIND | _MS_REC)


def inotify_queue() -> int:
    """A descriptor that delivers events of watched files, never blocking."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_watch_once(queue: int, path: Path, events: int) -> int:
    """Have `queue` deliver the first of `events` that happens to the file at `path`."""
    mask = ctypes.c_uint32(events | _IN_ONESHOT)
    return _checked(_libc.inotify_add_watch(queue, os.fsencode(path), mask))


def works_in_child(call: Callable[[], None]) -> bool:
    """Whether `call` raises no `OSError`, tried in a child of this process."""
    pid = os.fork()
    if not pid:
        try:
            call()
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _mount(source: str | Path, target: Path, options: str | None, flags: int) -> None:
    _checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            b"tmpfs" if source == "tmpfs" else None,
            ctypes.c_ulong(flags),
            options.encode() if options else None,
        )
    )


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
