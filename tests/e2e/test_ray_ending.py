"""A run in a Ray cluster that is cancelled or killed leaves nothing there, and goes on later."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from prefect.settings import PREFECT_API_URL

pytest.importorskip("ray", reason="Ray is not installed here")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")
import ray

from mappa_core.app.config import TrainConfig
from mappa_core.cluster.config import ClusterConfig
from mappa_core.cluster.local_nodes import local_nodes
from mappa_core.cluster.ray_places import connected
from mappa_core.core.records.runs import RunStatus
from mappa_core.rollout.engines.transformers import fork_vllm_stub
from mappa_core.store.store import Store
from mappa_core.train.learners.deepspeed.launch import WORKER

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    # Ray leaves sockets and the processes of its nodes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROOT = Path(__file__).parents[2]
NODES, CPUS, LONG_SECONDS = 2, 8, 600
OURS = (Path(fork_vllm_stub.__file__).name, WORKER)
"""In the command lines of servers and ranks."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run of a process of its own."""

    store: Store
    words: tuple[str, ...]

    def start(self, *resume: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.ray_victim", *self.words, *resume],
            cwd=ROOT,
            env=os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
        )

    def sampled(self, iteration: int) -> int:
        for run in self.store.runs.list_runs():
            figures = self.store.figures.get_iteration_figures(run.id, "train", iteration)
            return sum(agent.actions for agent in figures.agents)
        return 0


@pytest.mark.parametrize(
    ("how", "left"),
    # A Prefect worker ends the process of a run that is cancelled by SIGTERM.
    [(signal.SIGTERM, RunStatus.INTERRUPTED), (signal.SIGKILL, RunStatus.RUNNING)],
)
def test_a_run_that_is_ended_takes_its_actors_along_and_goes_on_with_new_ones(
    store: Store,
    database_url: str,
    tiny_model: Path,
    tmp_path: Path,
    toy_config: TrainConfig,
    how: signal.Signals,
    left: RunStatus,
) -> None:
    learner = toy_config.learner.model_dump() | {"backend": "deepspeed"}
    rollout = {"iterations": 2, "episodes_per_problem": 4, "max_tokens": 4}
    sections = {"rollout": toy_config.rollout.model_dump() | rollout, "learner": learner}
    config = TrainConfig.model_validate(toy_config.model_dump() | sections)
    asked = json.dumps(config.model_dump(mode="json"))
    given = (database_url, str(tiny_model), str(tmp_path), asked)
    with local_nodes(NODES, cpus=CPUS) as cluster:
        own = ClusterConfig(backend="ray", address=cluster.address)
        run = Run(store=store, words=(*given, cluster.address))
        with connected(own), run.start() as process:
            # The second iteration: the ranks have been started, too.
            until(lambda: run.sampled(2) > 0 or process.poll() is not None)
            assert process.poll() is None
            assert free() < NODES * CPUS
            assert processes() >= set(OURS)
            process.send_signal(how)
            process.wait(LONG_SECONDS)
            until(lambda: free() == NODES * CPUS and not processes())
        (stored,) = store.runs.list_runs()
        assert stored.status is left
        with connected(own):
            assert run.start(str(stored.id)).wait(LONG_SECONDS) == 0
            until(lambda: free() == NODES * CPUS and not processes())
    assert store.runs.get_run(str(stored.id)).status is RunStatus.COMPLETED
    assert len(store.policies.list_checkpoints(stored.id)) == 2


def free() -> float:
    """CPUs of the cluster that no placement group has."""
    return float(ray.available_resources().get("CPU", 0))


def processes() -> set[str]:
    """Which of our servers and ranks there are on this machine."""
    lines = [each.info["cmdline"] or () for each in psutil.process_iter(["cmdline"])]
    own = [" ".join(words) for words in lines if sys.executable in words]
    return {name for name in OURS if any(name in line for line in own)}


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONG_SECONDS
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.1)
