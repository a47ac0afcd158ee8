"""The compose stack as a person has it after `make up`: healthy, deployed, and it trains."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import httpx
import psycopg
import pytest
from docker.errors import DockerException, ImageNotFound
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts

from tests.integration.cli.servers.compose import compose
from tests.integration.platform.deployed import Platform, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]

PROJECT = "mappa-test"
PASSWORD = "letmein"
DATABASE = f"postgresql://mappa:{PASSWORD}@127.0.0.1:5432"
PREFECT = "http://127.0.0.1:4200"
MLFLOW = "http://127.0.0.1:5000"
ONE_SHOT = ("migrate", "deploy")
OURS = ("prefect", "mlflow", "worker")
LASTING = ("postgres", "redis", *OURS)
NODES = ("ray-node-1", "ray-node-2")
RAY = ("ray-head", *NODES, "ray-worker")
FUSION = "mappa-sandbox-fusion:local"
"""SandboxFusion from source, which `.ci/stack` builds where it is given."""
# A round of two problems with the real model, as a person would shorten the preset in the form.
SHORT = {
    "name": "short",
    "prompts": "small-1",
    "model": "smollm2-135m-instruct",
    "problems": {"levels": [1], "train_size": 20, "held_out_size": 2},
    "rollout": {"iterations": 1, "problems": 2, "episodes_per_problem": 2, "max_tokens": 16},
    "engine": {"max_model_length": 512, "kv_cache_gib": 0.25},
    "evaluation": {"bootstrap": 100},
}


@dataclass
class Stack:
    """The containers of the services that are up."""

    engine: docker.DockerClient
    sandboxed: bool
    """Whether the service `sandbox` is one of them."""

    @property
    def lasting(self) -> tuple[str, ...]:
        """Services that stay up."""
        return (*LASTING, "sandbox") if self.sandboxed else LASTING

    def state(self, service: str) -> dict[str, Any]:
        (found,) = self._containers(service)
        return found.attrs["State"]

    def healthy(self, *services: str) -> bool:
        return all(self.state(each)["Health"]["Status"] == "healthy" for each in services)

    def done(self, service: str) -> bool:
        state = self.state(service)
        assert state["ExitCode"] == 0, self.log(service)
        return state["Status"] == "exited"

    def log(self, service: str) -> str:
        (found,) = self._containers(service)
        return found.logs(tail=60).decode()

    def asked(self, service: str, *command: str) -> str:
        """What a command printed inside a service's container."""
        (found,) = self._containers(service)
        return found.exec_run(list(command)).output.decode().strip()

    def serves(self, service: str) -> bool:
        """Whether a vLLM server runs in a service's container."""
        (found,) = self._containers(service)
        running = found.top(ps_args="-eo pid,args")["Processes"]
        return any("VLLM::EngineCore" in " ".join(each) for each in running)

    def _containers(self, service: str) -> list[Any]:
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        return self.engine.containers.list(all=True, filters={"label": labels})


def docker_compose(*arguments: str) -> None:
    named = ("--project-name", PROJECT, *arguments)
    ran = compose(*named, password=PASSWORD, files=(".ci/stack.yml", ".ci/stack-fusion.yml"))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def has_image(engine: docker.DockerClient, name: str) -> bool:
    try:
        engine.images.get(name)
    except ImageNotFound:
        return False
    return True


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    try:
        engine = docker.from_env()
        engine.images.get("mappa:local")
    except DockerException as error:
        if os.environ.get("CI"):
            pytest.fail(f"the stack needs Docker and the images of .ci/stack: {error}")
        pytest.skip(f"the stack needs Docker and the images of .ci/stack: {error}")
    made = Stack(engine, sandboxed=has_image(engine, FUSION))
    try:
        docker_compose("up", "--detach", *made.lasting, *ONE_SHOT)
        yield made
    finally:
        docker_compose("--profile", "ray", "down", "--volumes", "--timeout", "20")
        engine.close()


@pytest.fixture
def platform(stack: Stack, tmp_path: Path) -> Iterator[Platform]:
    wait_for("the services", lambda: stack.healthy(*stack.lasting))
    wait_for("the deployments", lambda: all(stack.done(each) for each in ONE_SHOT))
    with httpx.Client(base_url=f"{PREFECT}/api", timeout=60, trust_env=False) as api:
        yield Platform(api=api, database_url=f"{DATABASE}/mappa", folder=tmp_path)


def test_each_system_has_a_database_and_a_page(platform: Platform) -> None:
    for system in ("mappa", "mlflow", "prefect"):
        with psycopg.connect(f"{DATABASE}/{system}") as connection:
            found = connection.execute("SELECT count(*) FROM pg_stat_user_tables").fetchone()
        assert found is not None
        assert found[0] > 10, system
    for page in (PREFECT, MLFLOW):
        answer = httpx.get(page, follow_redirects=True, trust_env=False)
        assert answer.status_code == 200, page
        assert "<html" in answer.text, page
    deployments = platform.api.post("/deployments/filter", json={}).raise_for_status().json()
    assert {"quickstart", "nightly", "mathchat"} <= {each["name"] for each in deployments}


def test_no_process_of_ours_is_root_or_may_become_it(platform: Platform, stack: Stack) -> None:
    for service in OURS:
        assert stack.asked(service, "id", "--user") == "10001", service
        assert "CapBnd:\t0000000000000000" in stack.asked(service, "cat", "/proc/1/status"), service
        assert PASSWORD not in stack.asked(service, "cat", "/proc/1/cmdline"), service


def test_a_run_started_from_outside_is_trained_by_the_worker_and_audited_by_night(
    platform: Platform, stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow_run = platform.start("train/quickstart", config=SHORT).raise_for_status().json()["id"]
    wait_for("the run", lambda: platform.state(flow_run) in ("COMPLETED", "FAILED", "CRASHED"))
    assert platform.state(flow_run) == "COMPLETED", stack.log("worker")
    assert platform.rows("SELECT count(*) FROM mappa.run WHERE status = 'completed'") == 1
    assert platform.rows("SELECT count(*) FROM mappa.coach_score WHERE score IS NOT NULL") >= 4
    assert platform.rows("SELECT count(model_version) FROM mappa.checkpoint") == 3

    # Where SandboxFusion is away the worker's own walls hold, and every result says so.
    walls = "sandbox-fusion" if stack.sandboxed else "landlock"
    other = f"SELECT count(*) FROM mappa.run WHERE sandbox_tier NOT LIKE '{walls}%'"
    assert platform.rows(other) == 0

    monkeypatch.setenv("MLFLOW_TRACKING_URI", MLFLOW)
    models = MlflowClient().search_registered_models()
    assert len(models) == 3
    folder = download_artifacts(f"models:/{models[0].name}/1", dst_path=str(tmp_path / "model"))
    assert list(Path(folder).rglob("adapter_model.safetensors"))

    tonight = platform.brought_forward("nightly")
    wait_for("the audit", lambda: platform.state(tonight) in ("COMPLETED", "FAILED", "CRASHED"))
    assert platform.state(tonight) == "COMPLETED", stack.log("worker")
    (audited,) = [each for each in platform.runs("audit") if each["id"] == tonight]
    assert audited["name"] == "audit the newest run"
    assert platform.rows("SELECT count(*) FROM mappa.audit_finding") > 0


def test_each_login_reaches_its_own_database_and_what_it_needs_there(platform: Platform) -> None:
    for login, database in (("mlflow", "mappa"), ("prefect", "mappa"), ("mappa_worker", "mlflow")):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(f"postgresql://{login}:{PASSWORD}@127.0.0.1:5432/{database}")
    worker = f"postgresql://mappa_worker:{PASSWORD}@127.0.0.1:5432/mappa"
    for statement in ("DELETE FROM mappa.coach_score", "DROP TABLE mappa.coach_score"):
        with (
            psycopg.connect(worker) as connection,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            connection.execute(statement.encode())
    owner = (
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'mappa' AND tableowner <> 'mappa_owner'"
    )
    assert platform.rows(owner) == 0


def test_what_dies_comes_back_with_what_it_knew(platform: Platform, stack: Stack) -> None:
    known = platform.api.post("/deployments/filter", json={}).raise_for_status().json()
    first = stack.state("prefect")
    os.kill(first["Pid"], signal.SIGKILL)
    wait_for("the death", lambda: stack.state("prefect")["StartedAt"] != first["StartedAt"])
    wait_for("Prefect", lambda: stack.healthy("prefect", "worker"))
    after = platform.api.post("/deployments/filter", json={}).raise_for_status().json()
    assert {each["id"] for each in after} == {each["id"] for each in known}


def test_a_run_of_the_profile_ray_has_its_servers_on_the_nodes(
    platform: Platform, stack: Stack
) -> None:
    """And is trained by a worker that has none; the other one is away, as docs/scaling.md says."""
    docker_compose("--profile", "ray", "up", "--detach", "--scale", "worker=0", "worker", *RAY)
    wait_for("the cluster", lambda: stack.healthy(*RAY))
    config = {**SHORT, "name": "placed", "cluster": {"backend": "ray"}}
    flow_run = platform.start("train/quickstart", config=config).raise_for_status().json()["id"]
    wait_for("servers on both nodes", lambda: all(stack.serves(each) for each in NODES))
    assert not stack.serves("ray-worker")
    wait_for("the run", lambda: platform.state(flow_run) in ("COMPLETED", "FAILED", "CRASHED"))
    assert platform.state(flow_run) == "COMPLETED", stack.log("ray-worker")
    placed = "SELECT count(*) FROM mappa.run WHERE name LIKE 'placed-%' AND status = 'completed'"
    assert platform.rows(placed) == 1
