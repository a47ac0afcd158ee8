"""No sandbox: a plain process with limits, for those who ask for it by name.

The program can read, write and signal whatever its user can, and reach the network.
"""

import os
from typing import NoReturn

from mappa_core.rollout.sandboxes import launch
from mappa_core.rollout.sandboxes.launch import Launch, Tier


def _execute(start: Launch) -> NoReturn:
    room = start.room
    os.chdir(room.workspace)
    folder = room.environment / "bin"
    variables = start.variables(str(room.scratch), str(folder), room.python)
    start.announce()
    os.execve(folder / "python", launch.arguments("python"), variables)  # noqa: S606


TIER = Tier(
    name="unsafe-subprocess",
    seccomp=False,
    private_room=None,
    python_inside=lambda room: room.python,
    execute=_execute,
    signal_base=0,
)
