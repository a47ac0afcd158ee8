"""Our supervisor as the first process of a container: what `docker` starts and talks to.

    standard input    the request with the workspace's files; its end says that nobody waits
    standard output   "ready", later the reply and the files that it names

As process 1 it cannot be signalled from inside the container, and with its end the kernel ends
every other process there. A container does one run and is gone. Standard library alone.
"""

import json
import sys
from pathlib import Path

from mappa_core.core.records.tools import ToolResult
from mappa_core.rollout.sandboxes import cgroups, remote, rooms, supervisor, wire
from mappa_core.rollout.sandboxes.supervisor import Facilities

HOME = "/mappa"
READY = b"ready\n"
LENGTH_BYTES = 8
_STANDARD_INPUT = 0


def main() -> None:
    """Wait for one request, do it, and answer."""
    group = cgroups.enclosing_group()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    sent = sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES)))
    if not sent:
        return
    root = Path(HOME)
    remote.unpack(root, json.loads(sent))
    request, packages = remote.request_below(root)
    facilities = Facilities(
        tier=remote.inner_tier(),
        python=rooms.our_interpreter(),
        hierarchy=None,
        private_rooms=False,
        packages=packages,
        enclosing=group,
        bounded_rooms=True,
    )
    reply = supervisor.report(request, _STANDARD_INPUT, facilities)
    if reply is not None:
        text = wire.encode_reply(reply)
        sys.stdout.buffer.write(len(text).to_bytes(LENGTH_BYTES) + text)
        if isinstance(reply, ToolResult):
            sys.stdout.buffer.writelines(remote.contents(root, reply))
        sys.stdout.buffer.flush()
