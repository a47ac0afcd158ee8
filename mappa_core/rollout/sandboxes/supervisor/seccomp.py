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
from mappa_core.rollout.sandboxes.supervisor import seccomp_calls

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
"""AUDIT_ARCH_* and the column in the tables of `seccomp_calls`."""

_THIS_MACHINE = platform.machine()
_Instruction = tuple[int, int, int, int]
"""Operation, jumps if true and if false, operand."""


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
            for numbers in seccomp_calls.DENIED.values()
            for step in _when(numbers[column], [_refuse(errno.EPERM)])
        ),
        *([] if namespaces else _kept_to_itself(column)),
        # glibc falls back to clone, whose flags can be read here.
        *_when(seccomp_calls.CLONE3[column], [_refuse(errno.ENOSYS)]),
        *_when(seccomp_calls.CLONE[column], [_argument(0), *_if_any_bit(_NAMESPACE_FLAGS)]),
        *_when(
            seccomp_calls.IOCTL[column],
            [_argument(1), *_if_one_of(_TERMINAL_INJECTION + _FILE_FLAGS)],
        ),
        *(_own_network(column) if namespaces else _no_network(column)),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in program)


def _own_network(column: int) -> list[_Instruction]:
    return _when(
        seccomp_calls.SOCKET[column],
        [_argument(0), *_unless_one_of((_AF_UNIX, _AF_INET, _AF_INET6))],
    )


def _no_network(column: int) -> list[_Instruction]:
    # A datagram pair could be connected anew, to a socket outside; a stream pair cannot.
    stream_only = [_argument(1), (_AND, 0, 0, _SOCK_TYPE_MASK), *_unless_one_of((_SOCK_STREAM,))]
    return [
        *_when(seccomp_calls.SOCKET[column], [_refuse(errno.EACCES)]),
        *_when(seccomp_calls.SOCKETPAIR[column], stream_only),
    ]


def _kept_to_itself(column: int) -> list[_Instruction]:
    ourselves = [_argument(0), *_unless_one_of((0,), errno.EPERM)]
    rules = [
        *((numbers, [_refuse(errno.EPERM)]) for numbers in seccomp_calls.SHARED.values()),
        *((numbers, [_refuse(_SUCCESS)]) for numbers in seccomp_calls.SETTLED.values()),
        *((numbers, ourselves) for numbers in seccomp_calls.OF_A_PROCESS.values()),
        *((numbers, _ourselves_as(kind)) for numbers, kind in seccomp_calls.OF_PROCESSES.values()),
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


def _if_any_bit(bits: int) -> list[_Instruction]:
    return [(_JUMP_ANY_BIT, 0, 1, bits), _refuse(errno.EPERM)]


def _if_one_of(values: Sequence[int]) -> list[_Instruction]:
    return [step for value in values for step in ((_JUMP_EQUAL, 0, 1, value), _refuse(errno.EPERM))]


def _unless_one_of(values: Sequence[int], error: int = errno.EACCES) -> list[_Instruction]:
    last = len(values)
    jumps = [(_JUMP_EQUAL, last - index, 0, value) for index, value in enumerate(values)]
    return [*jumps, _refuse(error)]
