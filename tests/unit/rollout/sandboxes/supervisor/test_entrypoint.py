"""The end of a supervisor elsewhere, as its sender sees it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes import remote
from mappa_core.rollout.sandboxes.supervisor import cgroups

MAIN = (
    "import sys; from mappa_core.rollout.sandboxes.supervisor import entrypoint; "
    "entrypoint.on_server(sys.argv[1])"
)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it ended while we looked
        return []


def test_a_supervisor_that_is_killed_ends_as_by_that_signal_and_leaves_no_group(
    tmp_path: Path,
) -> None:
    for name, data in remote.packed(
        "import time; time.sleep(60)", None, Limits(), packages=False
    ).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, str(tmp_path)], stdout=subprocess.PIPE
    ) as run:
        deadline = time.monotonic() + 30
        while not (found := [pid for pid in children(run.pid) if children(pid)]):
            assert time.monotonic() < deadline, "no program in 30 s"
            time.sleep(0.01)
        os.kill(found[0], signal.SIGKILL)
        said, _ = run.communicate(timeout=30)
    assert (run.returncode, said) == (128 + signal.SIGKILL, b"")
    hierarchy = cgroups.find_hierarchy()
    left = hierarchy.group(found[0]).folders.values() if hierarchy else ()
    assert not any(folder.exists() for folder in left)
