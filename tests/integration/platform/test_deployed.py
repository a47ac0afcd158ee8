"""The deployments on a real server with real workers: from `prefect deploy` to rows."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from flows.servers import prefect_server
from mappa_core.adapters.store.connection import for_psql
from mappa_core.settings import Settings
from tests.tiny_model import save_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 300
UPDATES = "SELECT count(*) FROM mappa.update"


@dataclass
class Platform:
    """A Prefect server with everything deployed."""

    api: httpx.Client
    database_url: str
    folder: Path

    def prefect(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    def done(self, *arguments: str) -> str:
        finished = self.prefect(*arguments)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    def mappa(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from flows.cli import main; main()", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    def worker(self, name: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", "cpu"],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def rows(self, query: str) -> int:
        with psycopg.connect(for_psql(self.database_url)) as connection:
            found = connection.execute(query.encode()).fetchone()
        assert found is not None
        return int(found[0])

    def start(self, deployment: str, **parameters: object) -> httpx.Response:
        found = self.api.get(f"/deployments/name/{deployment}").raise_for_status().json()
        return self.api.post(
            f"/deployments/{found['id']}/create_flow_run",
            json={"parameters": parameters, "state": {"type": "SCHEDULED"}},
        )

    def state(self, flow_run: str) -> str:
        return self.api.get(f"/flow_runs/{flow_run}").raise_for_status().json()["state_type"]


@pytest.fixture
def platform(
    database_url: str, open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Platform]:
    home = tmp_path / "home"
    monkeypatch.setenv("MAPPA_HOME", str(home))
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    monkeypatch.setenv("PREFECT_WORKER_QUERY_SECONDS", "2")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with (
        prefect_server(Settings()) as address,
        httpx.Client(base_url=address, timeout=60, trust_env=False) as api,
    ):
        monkeypatch.setenv("PREFECT_API_URL", address)
        made = Platform(api=api, database_url=database_url, folder=tmp_path)
        for pool in ("cpu", "gpu"):
            made.done("work-pool", "create", pool, "--type", "process")
        made.done("deploy", "--all")
        made.done("automation", "create", "--from-file", "infra/automations.yaml")
        yield made


def wait_for(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS} s for {what}"
        time.sleep(1)


def kill_machine(worker: subprocess.Popen[bytes]) -> None:
    """What a power cut does: the worker and everything below it are gone at once."""
    family = [*psutil.Process(worker.pid).children(recursive=True), psutil.Process(worker.pid)]
    for process in family:
        process.kill()
    psutil.wait_procs(family, timeout=10)
    worker.wait(10)


def tiny(folder: Path) -> dict[str, object]:
    return {
        "name": "tiny",
        "model": str(save_tiny_model(folder / "tiny")),
        "problems": {"train_size": 20, "held_out_size": 2},
        "rollout": {"iterations": 3, "problems": 2, "episodes_per_problem": 2, "max_tokens": 8},
        "engine": {"backend": "transformers", "device": "cpu"},
        "learner": {"device": "cpu", "lora": {"rank": 4, "alpha": 8}},
        "evaluation": {"bootstrap": 100},
    }


def test_a_deployed_run_survives_its_worker_and_the_form_refuses_nonsense(
    platform: Platform, tmp_path: Path
) -> None:
    config = tiny(tmp_path)
    refused = platform.start("train/quickstart", config=config | {"rollout": {"iterations": 0}})
    assert refused.status_code in (409, 422)
    assert "less than the minimum of 1" in refused.text

    flow_run = platform.start("train/quickstart", config=config).raise_for_status().json()["id"]
    first = platform.worker("first")
    wait_for("the first update", lambda: platform.rows(UPDATES) >= 1)
    kill_machine(first)
    assert platform.state(flow_run) == "RUNNING"  # nobody is left to say otherwise
    assert platform.rows(UPDATES) < 9
    # As infra/automations.yaml does after three missed heartbeats.
    platform.api.post(
        f"/flow_runs/{flow_run}/set_state", json={"state": {"type": "CRASHED"}, "force": True}
    ).raise_for_status()
    platform.done("flow-run", "retry", flow_run)
    platform.done(
        "event",
        "emit",
        "mappa.audit.drift",
        "--resource",
        json.dumps({"prefect.resource.id": "mappa.run.tiny", "prefect.resource.name": "tiny"}),
        "--payload",
        json.dumps({"cause": "coach", "since": 2}),
    )
    second = platform.worker("second")
    try:
        wait_for("the run to end", lambda: platform.state(flow_run) in ("COMPLETED", "FAILED"))
        wait_for("the alert", lambda: alerts(platform) == ["COMPLETED"])
    finally:
        second.terminate()
        second.wait(60)
    log = (tmp_path / "second.log").read_text()
    assert platform.state(flow_run) == "COMPLETED", log[-3000:]
    assert platform.rows("SELECT count(*) FROM mappa.run") == 1
    assert platform.rows("SELECT count(*) FROM mappa.run WHERE status = 'completed'") == 1
    assert platform.rows(UPDATES) == 9
    assert platform.rows("SELECT count(model_version) FROM mappa.checkpoint") == 9
    promoted(platform)


def promoted(platform: Platform) -> None:
    """Two updates of a tiny model prove nothing, and an override is what it takes."""
    refused = platform.mappa("promote", "tiny")
    assert refused.returncode == 1
    assert "is not promoted: the gain over the base model is not certified" in refused.stderr
    assert platform.mappa("promote", "tiny", "--override", "a test").returncode == 0
    listed = json.loads(platform.mappa("promote", "--list", "--json").stdout)
    champions = [each for each in listed if "champion" in each["aliases"]]
    assert {each["agent"]: each["step"] for each in champions} == {
        "problem_solver": 3,
        "code_executor": 3,
        "verifier": 3,
    }
    assert {each["promotion"]["override"] for each in champions} == {"a test"}


def alerts(platform: Platform) -> list[str]:
    body = {"flows": {"name": {"any_": ["alert"]}}}
    found = platform.api.post("/flow_runs/filter", json=body).raise_for_status().json()
    assert all(each["parameters"]["run_name"] == "tiny" for each in found)
    return [each["state_type"] for each in found]
