"""The few Linux calls the standard library has no name for."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_PR_SET_SECUREBITS, _NO_ROOT_FOR_EVER = 28, 0b11
_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_IN_ONESHOT = 1 << 31
_CAP_SETUID = 1 << 7
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """`result` of a C call, unless it says that the call failed.

    Raises:
        OSError: It is negative.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(number: int, *arguments: object) -> int:
    """A raw system call; integers are passed as longs, the rest as ctypes passes them.

    Raises:
        OSError: The kernel refused.
    """
    longs = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    return checked(_libc.syscall(ctypes.c_long(number), *longs))


def prctl(option: int, value: int = 1, pointer: object = None) -> None:
    """One `prctl(2)` with a number and, where the option takes one, a pointer.

    Raises:
        OSError: The kernel refused.
    """
    zero = ctypes.c_ulong(0)
    checked(_libc.prctl(option, ctypes.c_ulong(value), pointer or zero, zero, zero))


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


def may_change_user() -> bool:
    """Whether this process holds CAP_SETUID; root of a container that dropped it does not."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(line for line in lines if line.startswith("CapEff:")).split()[1]
    return bool(int(held, 16) & _CAP_SETUID)


def enter_private_mounts() -> None:
    """From now on mount for this process alone; an ordinary user gets a user namespace first.

    Raises:
        OSError: The machine forbids it.
    """
    uid, gid = os.geteuid(), os.getegid()
    ordinary = uid != 0
    checked(_libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if ordinary else 0)))
    if ordinary:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", Path("/"), None, _MS_REC | _MS_PRIVATE)


def mount_tmpfs(target: Path, options: str) -> None:
    """Mount an empty memory file system, e.g. with `size=65536,nr_inodes=64,mode=0755`.

    Raises:
        OSError: The kernel refused.
    """
    _mount("tmpfs", target, options, _MS_NOSUID | _MS_NODEV)


def bind(source: str, target: Path) -> None:
    """Show the file or directory `source` at `target` too.

    Raises:
        OSError: The kernel refused.
    """
    _mount(source, target, None, _MS_BIND | _MS_REC)


def watch_queue() -> int:
    """A descriptor that delivers news of watched files, never blocking.

    Raises:
        OSError: This user has too many already.
    """
    return checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def watch_once(queue: int, path: Path, events: int) -> int:
    """Have `queue` told of the first of `events` that happens to the file at `path`.

    Raises:
        OSError: It is not there, or this user has too many watches.
    """
    mask = ctypes.c_uint32(events | _IN_ONESHOT)
    return checked(_libc.inotify_add_watch(queue, os.fsencode(path), mask))


def _mount(source: str, target: Path, options: str | None, flags: int) -> None:
    checked(
        _libc.mount(
            os.fsencode(source),
            os.fsencode(target),
            b"tmpfs" if source == "tmpfs" else None,
            ctypes.c_ulong(flags),
            options.encode() if options else None,
        )
    )


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, parents before children."""
    found: list[int] = []
    frontier = [pid]
    while frontier:
        children = [child for parent in frontier for child in _children(parent)]
        found += children
        frontier = children
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        lists = [(task / "children").read_text() for task in tasks]
    except OSError:  # it ended while we looked
        return []
    return [int(child) for text in lists for child in text.split()]


def resident_bytes(pids: list[int]) -> int:
    """Memory that is `pids`' own, pages shared with files and among processes left out."""
    return sum(map(_resident_bytes, pids))


def _resident_bytes(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")


def tasks_of(uid: int) -> int:
    """Processes and threads of a user on this machine, as RLIMIT_NPROC counts them."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended while we looked
            if process.stat().st_uid == uid:
                count += len(list((process / "task").iterdir()))
    return count
