"""What an actor that owns a rank gives it, and takes from it: no shared folder is between them."""

import gc
import time
from pathlib import Path

import pytest

from mappa_core.cluster.rank_host import RankHost

RANK = """
import sys
from pathlib import Path
from mappa_core.cluster.inbox import next_task, reply_file
for number in range(2):
    task = next_task(Path(sys.argv[1]), number)
    unfinished = task.with_suffix(".writing")
    unfinished.write_bytes(task.read_bytes().upper())
    unfinished.rename(reply_file(task))
"""


def replied(host: RankHost) -> bytes:
    while (reply := host.reply()) is None:
        assert host.alive()
        time.sleep(0.01)
    return reply


# An actor closes nothing: all of it goes with its process.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tasks_are_given_and_replies_taken_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    host = RankHost()
    host.start(("-c", RANK), str(tmp_path / "logs" / "rank.log"), {"RANK": "0"})
    assert host.reply() is None
    host.hand_over(0, b"first")
    assert replied(host) == b"FIRST"
    host.hand_over(1, b"second")
    assert replied(host) == b"SECOND"
    # What is done is not kept.
    assert len([*tmp_path.glob("mappa-rank-*/.job-*")]) == 1
    while host.alive():
        time.sleep(0.01)
    del host
    gc.collect()
