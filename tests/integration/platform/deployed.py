"""A Prefect server with everything deployed, and workers that can be killed."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import yaml

from mappa_core.store.connection import for_psql
from tests.tiny_model import save_tiny_model

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 600


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

    def set_up(self) -> None:
        """Do what the compose service `deploy` does whenever the stack comes up."""
        services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        shell, flag, script = services["deploy"]["command"]
        programs = Path(sys.executable).parent
        subprocess.run(
            [shell, flag, script.replace("$$", "$")],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
            check=True,
            capture_output=True,
        )

    def mappa(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from mappa_cli.main import main; main()", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    def worker(self, name: str, pool: str = "cpu") -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            return subprocess.Popen(
                [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool],
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

    def runs(self, flow: str) -> list[dict[str, Any]]:
        """All runs of a flow, as Prefect knows them."""
        body = {"flows": {"name": {"any_": [flow]}}}
        return self.api.post("/flow_runs/filter", json=body).raise_for_status().json()

    def brought_forward(self, deployment: str) -> str:
        """The next run that a deployment's schedule has made, due now; returns its id."""
        body = {
            "deployments": {"name": {"any_": [deployment]}},
            "flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}},
            "sort": "EXPECTED_START_TIME_ASC",
        }
        wait_for(
            f"the schedule of {deployment}",
            lambda: self.api.post("/flow_runs/filter", json=body).raise_for_status().json() != [],
        )
        first = self.api.post("/flow_runs/filter", json=body).raise_for_status().json()[0]
        assert first["auto_scheduled"]
        due = {
            "type": "SCHEDULED",
            "state_details": {"scheduled_time": datetime.now(UTC).isoformat()},
        }
        wanted = {"state": due, "force": True}
        self.api.post(f"/flow_runs/{first['id']}/set_state", json=wanted).raise_for_status()
        return first["id"]

    def tell(self, event: str, run_name: str, **payload: object) -> None:
        """Emit an event about a training run."""
        resource = {
            "prefect.resource.id": f"mappa.run.{run_name}",
            "prefect.resource.name": run_name,
        }
        told = json.dumps(resource), "--payload", json.dumps(payload)
        self.done("event", "emit", event, "--resource", *told)

    def switch_on(self, automation: str) -> None:
        """Enable an automation by its name."""
        found = self.api.post("/automations/filter", json={}).raise_for_status().json()
        (wanted,) = [each["id"] for each in found if each["name"] == automation]
        self.api.patch(f"/automations/{wanted}", json={"enabled": True}).raise_for_status()

    def automations(self) -> list[str]:
        """Their names."""
        found = self.api.post("/automations/filter", json={}).raise_for_status().json()
        return [each["name"] for each in found]

    def log(self, flow_run: str) -> str:
        """What a person reads on the page of a flow run."""
        body = {"logs": {"flow_run_id": {"any_": [flow_run]}}, "sort": "TIMESTAMP_ASC"}
        found = self.api.post("/logs/filter", json=body).raise_for_status().json()
        return "\n".join(each["message"] for each in found)

    def state(self, flow_run: str) -> str:
        return self.api.get(f"/flow_runs/{flow_run}").raise_for_status().json()["state_type"]


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


def stop(*workers: subprocess.Popen[bytes]) -> None:
    """Let workers end as a service manager does."""
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.wait(60)


def tiny(folder: Path, iterations: int, deployment: str | None = None) -> dict[str, object]:
    """A run of a minute; its updates may be sent to a deployment."""
    return {
        "name": "tiny",
        "model": str(save_tiny_model(folder / "tiny")),
        "problems": {"train_size": 20, "held_out_size": 2},
        "rollout": {
            "iterations": iterations,
            "problems": 2,
            "episodes_per_problem": 2,
            "max_tokens": 8,
        },
        "engine": {"backend": "transformers", "device": "cpu"},
        "learner": {"device": "cpu", "lora": {"rank": 4, "alpha": 8}, "deployment": deployment},
        "evaluation": {"bootstrap": 100},
    }
