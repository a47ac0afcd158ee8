"""The filter is run here by a small interpreter, so both architectures are tested on either."""

import errno
import struct

import pytest

from mappa_core.core.errors import SandboxUnavailable
from mappa_core.rollout.sandboxes.supervisor.seccomp import deny_filter

ALLOW, KILL = 0x7FFF0000, 0x80000000
X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    steps = list(struct.iter_unpack("HBBI", program))
    accumulator = at = 0
    while True:
        operation, if_true, if_false, operand = steps[at]
        at += 1
        if operation == 0x06:
            return operand
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[operation]
            at += if_true if holds else if_false


def refused(number: int) -> int:
    return 0x00050000 | number


@pytest.mark.parametrize(
    ("machine", "call", "arguments", "own_network", "no_network"),
    [
        (X86, 0, (), ALLOW, ALLOW),  # read
        (X86, 101, (), refused(errno.EPERM), refused(errno.EPERM)),  # ptrace
        (ARM, 117, (), refused(errno.EPERM), refused(errno.EPERM)),
        (ARM, 101, (), ALLOW, ALLOW),  # nanosleep there
        (X86, 435, (), refused(errno.ENOSYS), refused(errno.ENOSYS)),  # clone3
        (X86, 56, (17,), ALLOW, ALLOW),  # clone, as fork does
        (X86, 56, (0x10000000 | 17,), refused(errno.EPERM), refused(errno.EPERM)),
        (ARM, 220, (0x40000000,), refused(errno.EPERM), refused(errno.EPERM)),
        (X86, 16, (0, 0x5413), ALLOW, ALLOW),  # ioctl TIOCGWINSZ
        (X86, 16, (0, 0x5412), refused(errno.EPERM), refused(errno.EPERM)),  # TIOCSTI
        (X86, 41, (1,), ALLOW, refused(errno.EACCES)),  # socket, AF_UNIX
        (X86, 41, (2,), ALLOW, refused(errno.EACCES)),
        (X86, 41, (10,), ALLOW, refused(errno.EACCES)),
        (X86, 41, (16,), refused(errno.EACCES), refused(errno.EACCES)),  # AF_NETLINK
        (ARM, 198, (40,), refused(errno.EACCES), refused(errno.EACCES)),  # AF_VSOCK
        (X86, 53, (1, 1 | 0o2000000), ALLOW, ALLOW),  # socketpair, stream, close on exec
        (X86, 53, (1, 2), ALLOW, refused(errno.EACCES)),  # datagrams
        (X86, 188, (), refused(errno.EPERM), refused(errno.EPERM)),  # setxattr
        (X86, 16, (3, 0x40086602), refused(errno.EPERM), refused(errno.EPERM)),  # FS_IOC_SETFLAGS
        (X86, 29, (), ALLOW, refused(errno.EPERM)),  # shmget
        (ARM, 29, (3, 0x5413), ALLOW, ALLOW),  # ioctl there
        (X86, 90, (), ALLOW, refused(0)),  # chmod
        (ARM, 53, (), ALLOW, refused(0)),  # fchmodat there
        (X86, 302, (0, 7), ALLOW, ALLOW),  # prlimit64 of itself
        (X86, 302, (7, 7), ALLOW, refused(errno.EPERM)),  # of another
        (X86, 141, (0, 0), ALLOW, ALLOW),  # setpriority, as nice does
        (X86, 141, (0, 7), ALLOW, refused(errno.EPERM)),
        (X86, 141, (2, 0), ALLOW, refused(errno.EPERM)),  # of all of the user's
        (X86, 251, (1, 0), ALLOW, ALLOW),  # ioprio_set
        (X86, 0x40000000 | 101, (), refused(errno.ENOSYS), refused(errno.ENOSYS)),  # x32
    ],
)
def test_verdicts(
    machine: tuple[str, int],
    call: int,
    arguments: tuple[int, ...],
    own_network: int,
    no_network: int,
):
    name, architecture = machine
    for namespace, expected in ((True, own_network), (False, no_network)):
        program = deny_filter(namespaces=namespace, machine=name)
        assert verdict(program, architecture, call, *arguments) == expected


def test_calls_of_another_architecture_kill():
    program = deny_filter(namespaces=True, machine="x86_64")
    assert verdict(program, 0x40000003, 0) == KILL  # i386, through int 0x80


def test_an_unknown_machine_is_refused():
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        deny_filter(namespaces=True, machine="riscv64")
