"""A small process that forks a supervisor for each run.

It is started once, by `local`, with the standard library alone, so that a fork costs a
millisecond however large the training process is. Its standard input is a socket: each message
brings the descriptor of a connection that asks for one run; its end says that we are done.
"""

import contextlib
import json
import os
import signal
import socket
from pathlib import Path

from mappa_core.rollout.sandboxes.supervisor import (
    bubblewrap,
    cgroups,
    landlock,
    messages,
    run,
    run_folder,
)
from mappa_core.rollout.sandboxes.supervisor.messages import Request
from mappa_core.rollout.sandboxes.supervisor.run import Facilities
from mappa_core.rollout.sandboxes.supervisor.tier import UNSAFE

_TIERS = (bubblewrap.TIER, landlock.TIER, UNSAFE)
_MAX_REQUEST_BYTES = 64 * 2**20


def main(backend: str, packages: str) -> None:
    """Serve runs in the tier `backend`, with `packages` as JSON, until the caller is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    tier = next(one for one in _TIERS if one.name == backend)
    facilities = Facilities(
        tier=tier,
        packages={name: Path(path) for name, path in json.loads(packages).items()},
        hierarchy=cgroups.find_hierarchy(),
        private_folders=tier.needs_private_folder or run_folder.can_make_private(),
    )
    run_folder.sweep()
    if facilities.hierarchy:
        facilities.hierarchy.sweep()
    # Supervisors are reaped by the kernel: how they ended is of no interest.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.sendall(json.dumps(facilities.name).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            break
        _fork(descriptors[0], facilities)
    # With SIGCHLD ignored this waits for all of them, and then says that there is none.
    with contextlib.suppress(ChildProcessError):
        os.wait()


def _fork(descriptor: int, facilities: Facilities) -> None:
    if os.fork():
        os.close(descriptor)
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    connection = socket.socket(fileno=descriptor)
    with contextlib.suppress(EOFError):  # the caller is gone already
        run.serve(connection, receive_request(connection), facilities)
    os._exit(0)


def receive_request(connection: socket.socket) -> Request:
    """Wait for one request.

    Raises:
        EOFError: The caller is gone.
    """
    with connection.makefile("rb") as stream:
        length = int.from_bytes(stream.read(messages.LENGTH_BYTES))
        text = stream.read(length) if length <= _MAX_REQUEST_BYTES else b""
    if not text or len(text) < length:
        raise EOFError
    return messages.decode_request(text)
