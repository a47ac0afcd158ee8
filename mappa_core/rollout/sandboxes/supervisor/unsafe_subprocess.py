"""No sandbox: a plain process with limits, for those that ask for it by name.

The program can read, write and signal whatever its user can, and reach the network.
"""

import os
from typing import NoReturn

from mappa_core.rollout.sandboxes.supervisor.tier import Launch, Tier


def _execute(launch: Launch) -> NoReturn:
    os.chdir(launch.folder.workspace)
    launch.become_python()


TIER = Tier(name="unsafe-subprocess", seccomp=False, execute=_execute)
