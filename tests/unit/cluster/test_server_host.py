"""A server in a cluster computes with as many threads as the run's own would."""

import os
import time
from pathlib import Path

import pytest

from mappa_core.cluster.server_host import ServerHost

SAYS = """
import os
from pathlib import Path
said = Path(__file__).with_suffix(".said")
said.with_suffix(".writing").write_text(os.environ["OMP_NUM_THREADS"])
said.with_suffix(".writing").rename(said)
os.read(0, 1)
"""


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("threads", "expected"), [("3", "3"), ("", str(len(os.sched_getaffinity(0))))]
)
def test_threads_are_the_runs_and_not_those_of_rays_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str, expected: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = tmp_path / "script.py"
    script.write_text(SAYS)
    host = ServerHost("127.0.0.1", str(tmp_path / "server.log"), "cpu", str(script), threads)
    host.start(())
    while not script.with_suffix(".said").exists():
        time.sleep(0.01)
    assert script.with_suffix(".said").read_text() == expected
