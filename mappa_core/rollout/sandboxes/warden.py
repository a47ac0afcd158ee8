"""The small process that forks a supervisor for each run.

It is started once, by `client`, with the standard library alone, so that a fork costs a
millisecond however large the training process is. Its standard input is a socket: each message
brings the descriptor of a connection that asks for one run; its end says that we are done.
"""

import json
import os
import signal
import socket
from pathlib import Path

from mappa_core.rollout.sandboxes import bubblewrap, cgroups, landlock, rooms, supervisor, unsafe
from mappa_core.rollout.sandboxes.launch import Tier
from mappa_core.rollout.sandboxes.supervisor import Facilities


def main(backend: str, packages: str) -> None:
    """Serve until the caller is gone.

    Args:
        backend: Name of the tier to put every run in.
        packages: JSON of what programs may import: entries of site-packages by name.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    facilities = _facilities(_tier(backend), json.loads(packages))
    rooms.sweep()
    if facilities.hierarchy:
        facilities.hierarchy.sweep()
    # Supervisors are reaped by the kernel: nobody asks how they ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.sendall(json.dumps(facilities.name).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        _fork(descriptors[0], facilities)
    _wait_for_supervisors()


def _tier(backend: str) -> Tier:
    tiers = {tier.name: tier for tier in (bubblewrap.TIER, landlock.TIER, unsafe.TIER)}
    return tiers[backend]  # pyright: ignore[reportArgumentType]


def _facilities(tier: Tier, packages: dict[str, str]) -> Facilities:
    return Facilities(
        tier=tier,
        python=rooms.our_interpreter(),
        hierarchy=cgroups.find_hierarchy(),
        private_rooms=bool(tier.private_room) or rooms.can_be_private(),
        packages={name: Path(path) for name, path in packages.items()},
    )


def _fork(descriptor: int, facilities: Facilities) -> None:
    if os.fork():
        os.close(descriptor)
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    supervisor.serve(socket.socket(fileno=descriptor), facilities)
    os._exit(0)


def _wait_for_supervisors() -> None:
    try:
        os.wait()
    except ChildProcessError:
        return
