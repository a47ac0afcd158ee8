"""The system calls a program may not make, as a seccomp filter assembled by hand.

A deny list: what has no business in a computation and has been a way out of sandboxes before.
Namespaces and Landlock decide about files, processes and networks; this closes what they leave
open. In the Landlock tier that is more: it has no namespaces, and Landlock itself says nothing of
sockets other than TCP, of System V's objects, of a file's mode, owner and times, or of what one
process may change in another of the same user.
"""

import errno
import platform
import struct
from collections.abc import Sequence

from mappa_core.core.errors import SandboxUnavailable

# linux/filter.h and linux/seccomp.h
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AND = 0x54
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_SUCCESS = 0
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16

_X32_BIT = 0x40000000
_NAMESPACE_FLAGS = 0x7E020080
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_FILE_FLAGS = (0x40086602, 0x401C5820, 0x40087602, 0x40806685)
"""FS_IOC_SETFLAGS, FSSETXATTR, SETVERSION, ENABLE_VERITY: to be able to read is enough for them."""
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_TYPE_MASK = 1, 0xF

_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""AUDIT_ARCH_* and the column in the tables below."""

_THIS_MACHINE = platform.machine()
_Instruction = tuple[int, int, int, int]
"""Operation, jumps if true and if false, operand."""

# The numbers of system calls on x86_64, and on aarch64 or None there.

CLONE = (56, 220)
CLONE3 = (435, 435)
IOCTL = (16, 29)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)

DENIED = {
    # kernel keyrings, programs in the kernel, rings, faults in user space
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "move_pages": (279, 239),
    # file systems and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "open_tree_attr": (467, 467),
    # what hangs on a file beside its bytes
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
    # the machine
    "acct": (163, 89),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "settimeofday": (164, 170),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "personality": (135, 92),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "syslog": (103, 116),
    "vhangup": (153, 58),
}

SHARED = {
    # objects that outlive a run
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "semtimedop": (220, 192),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # what goes on in folders that cannot be opened
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
}
"""What namespaces would give a program of its own; refused where it has none."""

SETTLED = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
"""Mode, owner and times of a file, be it one that cannot be opened. Where files outside are in
reach these succeed and change nothing: refused, `shutil.copy` would fail in the workspace."""

OF_A_PROCESS = {
    "prlimit64": (302, 261),
    "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
}
"""Their first argument is a process; 0, the caller, is all that one without its own may name."""
OF_PROCESSES = {"setpriority": ((141, 140), 0), "ioprio_set": ((251, 30), 1)}
"""Likewise, but first comes of what the second is the number: this value says of a process."""


def deny_filter(*, namespaces: bool, machine: str = _THIS_MACHINE) -> bytes:
    """The filter, as an array of `struct sock_filter`.

    Args:
        namespaces: True where the program has files, processes, IPC and a network of its own, so
            that ordinary sockets reach nothing; False refuses every socket but a connected pair,
            and whatever would reach the files and processes of the same user.
        machine: Architecture, this machine's by default.

    Raises:
        SandboxUnavailable: The architecture is neither x86_64 nor aarch64.
    """
    if machine not in _ARCHITECTURES:
        raise SandboxUnavailable(f"no system call filter for {machine}; use x86_64 or aarch64")
    architecture, column = _ARCHITECTURES[machine]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        _refuse(errno.ENOSYS),
        *(
            step
            for numbers in DENIED.values()
            for step in _when(numbers[column], [_refuse(errno.EPERM)])
        ),
        *([] if namespaces else _kept_to_itself(column)),
        # glibc falls back to clone, whose flags can be read here.
        *_when(CLONE3[column], [_refuse(errno.ENOSYS)]),
        *_when(
            CLONE[column],
            [_argument(0), (_JUMP_ANY_BIT, 0, 1, _NAMESPACE_FLAGS), _refuse(errno.EPERM)],
        ),
        *_when(
            IOCTL[column],
            [_argument(1), *_if_one_of(_TERMINAL_INJECTION + _FILE_FLAGS)],
        ),
        *(_own_network(column) if namespaces else _no_network(column)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _own_network(column: int) -> list[_Instruction]:
    return _when(
        SOCKET[column],
        [_argument(0), *_unless_one_of((_AF_UNIX, _AF_INET, _AF_INET6))],
    )


def _no_network(column: int) -> list[_Instruction]:
    # A datagram pair could be connected anew, to a socket outside; a stream pair cannot.
    stream_only = [_argument(1), (_AND, 0, 0, _SOCK_TYPE_MASK), *_unless_one_of((_SOCK_STREAM,))]
    return [
        *_when(SOCKET[column], [_refuse(errno.EACCES)]),
        *_when(SOCKETPAIR[column], stream_only),
    ]


def _kept_to_itself(column: int) -> list[_Instruction]:
    ourselves = [_argument(0), *_unless_one_of((0,), errno.EPERM)]
    rules = [
        *((numbers, [_refuse(errno.EPERM)]) for numbers in SHARED.values()),
        *((numbers, [_refuse(_SUCCESS)]) for numbers in SETTLED.values()),
        *((numbers, ourselves) for numbers in OF_A_PROCESS.values()),
        *((numbers, _ourselves_as(kind)) for numbers, kind in OF_PROCESSES.values()),
    ]
    numbered = ((numbers[column], body) for numbers, body in rules)
    return [step for n, body in numbered if n is not None for step in _when(n, body)]


def _ourselves_as(kind: int) -> list[_Instruction]:
    whose = [_argument(1), *_unless_one_of((0,), errno.EPERM)]
    return [_argument(0), *_unless_one_of((kind,), errno.EPERM), *whose]


def _when(number: int, body: Sequence[_Instruction]) -> list[_Instruction]:
    reload = (_LOAD, 0, 0, _NUMBER_OFFSET)
    return [(_JUMP_EQUAL, 0, len(body) + 1, number), *body, reload]


def _argument(index: int) -> _Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * index)


def _refuse(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _if_one_of(values: Sequence[int]) -> list[_Instruction]:
    return [step for value in values for step in ((_JUMP_EQUAL, 0, 1, value), _refuse(errno.EPERM))]


def _unless_one_of(values: Sequence[int], error: int = errno.EACCES) -> list[_Instruction]:
    last = len(values)
    jumps = [(_JUMP_EQUAL, last - index, 0, value) for index, value in enumerate(values)]
    return [*jumps, _refuse(error)]
