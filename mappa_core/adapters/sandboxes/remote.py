"""Our supervisor on somebody else's machine: what `fusion` sends along and has run there.

    .mappa/request.json, workspace/*  ─▶ supervisor, unsafe tier ─▶  .mappa/reply.json, contents.bin

So a run over HTTP keeps the same promise as one here: limits on the whole tree, both ends of the
output, plain files only, what was read. The walls are those of the service that runs this.
Standard library alone.
"""

import hashlib
import json
import os
import site
import socket
import sys
from dataclasses import replace
from pathlib import Path

from mappa_core.adapters.sandboxes import cgroups, rooms, supervisor, unsafe, wire
from mappa_core.adapters.sandboxes.supervisor import Facilities

FOLDER = ".mappa"
REQUEST, REPLY, CONTENTS = f"{FOLDER}/request.json", f"{FOLDER}/reply.json", f"{FOLDER}/contents"
WORKSPACE = "workspace"
SEAL = "mappa reply "
"""What the last line says before the digest of the reply, so that a cut-off answer shows."""


def main(home: str) -> None:
    """Do the run that `request.json` below `home` describes, and seal the reply."""
    root = Path(home)
    text = (root / REQUEST).read_bytes()
    request = replace(wire.decode_request(text), workspace=str(root / WORKSPACE))
    (root / WORKSPACE).mkdir(exist_ok=True)
    packages = _packages() if json.loads(text)["packages"] else {}
    facilities = Facilities(
        tier=unsafe.TIER,
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
    os.wait()
    _put(root, reply)
    sys.stdout.write(f"{SEAL}{hashlib.sha256(reply).hexdigest()}\n")


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
    with (root / CONTENTS).open("wb") as contents:
        if not isinstance(result, wire.Failure):
            for file in result.written:
                contents.write((root / WORKSPACE / file.name).read_bytes())
