"""`mappa train` in a Ray cluster as a person starts it: real model, vLLM and ranks on nodes."""

import json
import signal
import subprocess
import urllib.request
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

pytest.importorskip("ray", reason="Ray is not installed here")
pytest.importorskip("deepspeed", reason="DeepSpeed is not installed here")
pytest.importorskip("aiohttp_cors", reason="Ray's dashboard is not installed here")

from mappa_core.cluster.local_nodes import local_nodes
from mappa_core.core.records.runs import RunStatus
from mappa_core.core.settings import Settings
from mappa_core.store.opening import opened_store
from tests.e2e.person import command_of, environment_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SMALL = (
    *("name=placed", "problems.held_out_size=2", "rollout.iterations=2", "rollout.problems=2"),
    *("rollout.episodes_per_problem=2", "rollout.max_tokens=16"),
    *("engine.max_model_length=512", "engine.kv_cache_gib=0.25", "engine.serving=adapters"),
    *("learner.micro_batch_tokens=512", "learner.backend=deepspeed", "cluster.backend=ray"),
)


def test_a_run_is_placed_interrupted_and_gone_on_with(real_model: Path, open_folder: Path) -> None:
    with local_nodes(2, dashboard=True) as cluster:
        home = open_folder / "placed"

        def typed(*words: str) -> subprocess.Popen[str]:
            environment = environment_of(home) | {"RAY_ADDRESS": cluster.address}
            pipe, out = subprocess.PIPE, subprocess.STDOUT
            command = command_of("train", *words)
            return subprocess.Popen(command, env=environment, stdout=pipe, stderr=out, text=True)

        with typed(f"model={real_model}", *SMALL) as begun:
            assert begun.stdout is not None
            said: list[str] = []
            for line in begun.stdout:
                said.append(line)
                if line.startswith("iteration 2:"):
                    begun.send_signal(signal.SIGINT)
        assert "experimental: cluster.backend=ray" in "".join(said)
        assert begun.returncode == 130, "".join(said)
        with opened_store(Settings(MAPPA_HOME=home)) as store:
            (run,) = store.runs.list_runs()
        assert run.status is RunStatus.INTERRUPTED
        with typed("--resume", run.name) as resumed:
            told, _ = resumed.communicate()
        assert resumed.returncode == 0, told
        with opened_store(Settings(MAPPA_HOME=home)) as store:
            assert store.runs.get_run(str(run.id)).status is RunStatus.COMPLETED
            assert len(store.policies.list_checkpoints(run.id)) == 2 * 3
        (link,) = {each for each in _links(home) if each.startswith("http")}
        with urllib.request.urlopen(f"{link}/api/version") as answer:
            assert json.load(answer)["ray_version"]


def _links(home: Path) -> list[str]:
    """Read where the run's pages in Prefect say that Ray's dashboard is."""
    (database,) = home.rglob("prefect*.db")
    with closing(connect(database)) as rows:
        found = rows.execute("SELECT data FROM artifact WHERE data LIKE '%[Ray](%'").fetchall()
    return [str(data).partition("[Ray](")[2].partition(")")[0] for (data,) in found]
