"""Our supervisor on somebody else's machine: what `fusion` sends along and has run there.

    .mappa/request.json, workspace/*  ─▶ supervisor, in Landlock  ─▶  .mappa/reply.json, contents

So a run over HTTP keeps the same promise as one here: limits on the whole tree, both ends of the
output, plain files only, what was read. Around the program stand our own walls where the kernel
has Landlock, and around these the service's. Standard library alone.
"""

import base64
import hashlib
import json
import os
import site
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from mappa_core.core.records.tools import ToolResult
from mappa_core.rollout.sandboxes import cgroups, landlock, rooms, supervisor, unsafe, wire
from mappa_core.rollout.sandboxes.launch import Tier
from mappa_core.rollout.sandboxes.supervisor import Facilities
from mappa_core.rollout.sandboxes.wire import Request

FOLDER = ".mappa"
REQUEST, REPLY, CONTENTS = f"{FOLDER}/request.json", f"{FOLDER}/reply.json", f"{FOLDER}/contents"
WORKSPACE = "workspace"
SIGNAL_BASE = 128
"""Exit codes above this say which signal ended the supervisor, as a shell's do."""
SEAL = "mappa reply "
"""What the last line says before the digest of the reply, so that a cut-off answer shows."""


def main(home: str) -> None:
    """Do the run that `request.json` below `home` describes, and seal the reply."""
    root = Path(home)
    request, packages = request_below(root)
    facilities = Facilities(
        tier=inner_tier(),
        python=rooms.our_interpreter(),
        hierarchy=cgroups.find_hierarchy(),
        private_rooms=rooms.can_be_private(),
        packages=packages,
    )
    ours, theirs = socket.socketpair()
    # In a child, because a run may take mounts and namespaces of its own.
    if not os.fork():
        supervisor.serve(theirs, facilities, request)
        os._exit(0)
    theirs.close()
    reply = _everything(ours)
    _, status = os.wait()
    if os.WIFSIGNALED(status):
        if facilities.hierarchy is not None:
            facilities.hierarchy.sweep()
        sys.exit(SIGNAL_BASE + os.WTERMSIG(status))
    _put(root, reply)
    sys.stdout.write(f"{SEAL}{hashlib.sha256(reply).hexdigest()}\n")


def inner_tier() -> Tier:
    """The walls we can put up ourselves, inside those of a service or a container."""
    return landlock.TIER if landlock.available() else unsafe.TIER


def unpack(root: Path, files: Mapping[str, str]) -> None:
    """Put what was sent in base64 below `root`."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(base64.b64decode(data))


def request_below(root: Path) -> tuple[Request, Mapping[str, Path]]:
    """What is to be run, on the workspace below `root`, and what it may import."""
    text = (root / REQUEST).read_bytes()
    (root / WORKSPACE).mkdir(exist_ok=True)
    request = replace(wire.decode_request(text), workspace=str(root / WORKSPACE))
    return request, _packages() if json.loads(text)["packages"] else {}


def contents(root: Path, result: ToolResult) -> Iterator[bytes]:
    """The bytes of each file that was written, in the order of the result."""
    for file in result.written:
        yield (root / WORKSPACE / file.name).read_bytes()


def _packages() -> dict[str, Path]:
    folders = [Path(folder) for folder in site.getsitepackages()]
    return {path.name: path for folder in folders if folder.is_dir() for path in folder.iterdir()}


def _everything(connection: socket.socket) -> bytes:
    data = bytearray()
    while chunk := connection.recv(2**16):
        data += chunk
    return bytes(data)


def _put(root: Path, reply: bytes) -> None:
    (root / REPLY).write_bytes(reply)
    result = wire.decode_reply(reply)
    with (root / CONTENTS).open("wb") as file:
        if isinstance(result, ToolResult):
            file.writelines(contents(root, result))
