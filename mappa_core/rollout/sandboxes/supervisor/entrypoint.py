"""The supervisor where MAPPA is not installed: in a container, or on a SandboxFusion server.

    .mappa/request.json, workspace/*  ─▶ one run, in Landlock  ─▶  the reply, files that it names

So a run there keeps the same promise as one here: limits on the whole tree, both ends of the
output, plain files only, what was read. Around the program stand our own walls where the kernel
has Landlock, and around these the container's or the server's.
"""

import base64
import hashlib
import json
import os
import site
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mappa_core.rollout.sandboxes.supervisor import (
    cgroups,
    landlock,
    messages,
    run,
    run_folder,
)
from mappa_core.rollout.sandboxes.supervisor.messages import Request
from mappa_core.rollout.sandboxes.supervisor.run import Facilities
from mappa_core.rollout.sandboxes.supervisor.tier import UNSAFE, Tier

_STANDARD_INPUT = 0


def in_container() -> None:
    """Do the one run of a container, as its first process.

    Standard input brings the files as a message, and its end says that the caller is gone;
    standard output says "ready", later the reply and the contents of the files that it names. As
    process 1 we cannot be signalled from inside, and with our end the kernel ends all others.
    """
    group = cgroups.enclosing_group()
    read, output = sys.stdin.buffer.read, sys.stdout.buffer
    output.write(messages.READY)
    output.flush()
    sent = read(int.from_bytes(read(messages.LENGTH_BYTES)))
    if not sent:
        return
    root = Path(messages.HOME)
    for name, data in json.loads(sent).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(base64.b64decode(data))
    request = _request(root)
    facilities = Facilities(
        tier=_inner_tier(), packages=_packages(request), enclosing=group, bounded_tmp=True
    )
    reply = run.report(_STANDARD_INPUT, request, facilities)
    if reply is not None:
        text = messages.encode(reply)
        output.write(messages.with_length(text))
        output.writelines(_contents(root, text))
        output.flush()


def on_server(home: str) -> None:
    """Do the run whose files lie below `home`, leave the reply there and print its seal."""
    root = Path(home)
    request = _request(root)
    facilities = Facilities(
        tier=_inner_tier(),
        packages=_packages(request),
        hierarchy=cgroups.find_hierarchy(),
        private_folders=run_folder.can_make_private(),
    )
    ours, theirs = socket.socketpair()
    # In a child, because a run may take mounts and namespaces of its own.
    if not os.fork():
        ours.close()
        run.serve(theirs, request, facilities)
        os._exit(0)
    theirs.close()
    with ours.makefile("rb") as stream:
        reply = stream.read()
    _, status = os.wait()
    if os.WIFSIGNALED(status):
        if facilities.hierarchy is not None:
            facilities.hierarchy.sweep()
        sys.exit(messages.SIGNAL_BASE + os.WTERMSIG(status))
    (root / messages.REPLY).write_bytes(reply)
    with (root / messages.CONTENTS).open("wb") as file:
        file.writelines(_contents(root, reply))
    sys.stdout.write(f"{messages.SEAL}{hashlib.sha256(reply).hexdigest()}\n")


def _inner_tier() -> Tier:
    """The walls we can put up ourselves, inside those of a server or a container."""
    return landlock.TIER if landlock.available() else UNSAFE


def _request(root: Path) -> Request:
    (root / messages.WORKSPACE).mkdir(exist_ok=True)
    request = messages.decode_request((root / messages.REQUEST).read_bytes())
    return replace(request, workspace=str(root / messages.WORKSPACE))


def _packages(request: Request) -> dict[str, Path]:
    folders = map(Path, site.getsitepackages() if request.packages else ())
    return {path.name: path for folder in folders if folder.is_dir() for path in folder.iterdir()}


def _contents(root: Path, reply: bytes) -> Iterator[bytes]:
    """The bytes of each file that the reply says was written, in its order; a failure has none."""
    for file in json.loads(reply).get("written", ()):
        yield (root / messages.WORKSPACE / file["name"]).read_bytes()
