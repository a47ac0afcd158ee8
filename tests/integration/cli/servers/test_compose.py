"""The compose file as docker-compose reads it: complete, and closed to the outside."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.cli.servers.compose import ROOT, compose

PROFILES = ("--profile", "gpu", "--profile", "ray")
ONE_SHOT = {"migrate", "deploy"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    resolved = compose(*PROFILES, "config", password="letmein")
    assert resolved.returncode == 0, resolved.stderr
    return yaml.safe_load(resolved.stdout)["services"]


def test_nothing_listens_beyond_loopback(services: dict[str, Any]) -> None:
    ports = [str(port) for service in services.values() for port in service.get("ports", ())]
    assert len(ports) >= 3
    assert all("127.0.0.1" in port for port in ports), ports


def test_every_service_is_limited_and_comes_back(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["mem_limit"], name
        assert service["restart"] == ("no" if name in ONE_SHOT else "unless-stopped"), name
        assert service["security_opt"] == ["no-new-privileges:true"], name


def test_every_service_says_how_it_is(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert ("healthcheck" in service) == (name not in ONE_SHOT), name
        for other, wait in service.get("depends_on", {}).items():
            ended, healthy = "service_completed_successfully", "service_healthy"
            assert wait["condition"] == (ended if other in ONE_SHOT else healthy), (name, other)


def test_the_password_is_asked_for_and_in_no_image(services: dict[str, Any]) -> None:
    refused = compose("config", password=None)
    assert refused.returncode != 0
    assert "choose one in .env" in refused.stderr
    builds = [service["build"] for service in services.values() if "build" in service]
    assert builds
    assert "letmein" not in json.dumps(builds)


WORKERS = {"worker": "sandbox", "gpu-worker": "gpu-sandbox", "ray-worker": "sandbox"}
"""Each worker and the server that runs its agents' programs."""


@pytest.mark.parametrize("worker", WORKERS)
def test_a_worker_has_keys_problem_files_and_a_sandbox_of_its_own(
    services: dict[str, Any], worker: str
) -> None:
    service, sandbox = services[worker], services[WORKERS[worker]]
    environment = service["environment"]
    assert environment["MAPPA_SANDBOXFUSION_URL"] == f"http://{WORKERS[worker]}:8080"
    assert set(sandbox["networks"]) < set(service["networks"])
    assert "environment" not in sandbox or set(sandbox["environment"]) == {"HOST"}
    (mounted,) = [each for each in service["volumes"] if "/data:" in str(each)]
    assert str(mounted).endswith(f"{environment['MAPPA_PROBLEMS']}/data:ro")


def test_keys_reach_workers_and_nothing_else(tmp_path: Path) -> None:
    keys = tmp_path / "worker.env"
    keys.write_text("GOOGLE_API_KEY=a-key-of-mine\n")
    named = {"WORKER_ENV_FILE": str(keys)}
    resolved = compose(*PROFILES, "config", password="letmein", variables=named)
    assert resolved.returncode == 0, resolved.stderr
    found = yaml.safe_load(resolved.stdout)["services"]
    assert {name for name in found if "a-key-of-mine" in json.dumps(found[name])} == set(WORKERS)


def test_the_owners_password_is_where_it_is_made_and_where_the_store_is_migrated() -> None:
    named = {"OWNER_PASSWORD": "of-the-owner"}
    resolved = compose(*PROFILES, "config", password="letmein", variables=named)
    assert resolved.returncode == 0, resolved.stderr
    found = yaml.safe_load(resolved.stdout)["services"]
    told = {name for name in found if "of-the-owner" in json.dumps(found[name])}
    assert told == {"postgres", "migrate"}


def test_no_process_beside_postgres_is_its_administrator(services: dict[str, Any]) -> None:
    users = {
        name: set(re.findall(r"postgresql\+\w+://(\w+):", json.dumps(service)))
        for name, service in services.items()
    }
    assert {name: logins for name, logins in users.items() if logins} == {
        "migrate": {"mappa_owner"},
        "prefect": {"prefect"},
        "mlflow": {"mlflow"},
        **{name: {"mappa_worker"} for name in ("deploy", *WORKERS)},
    }


def test_a_worker_has_the_memory_that_its_pools_deployments_state(services: dict[str, Any]) -> None:
    stated = 0
    for deployment in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]:
        if deployment["entrypoint"] != "flows.train.train":
            continue
        (needed,) = re.findall(r"(\d+) GB of memory", deployment["description"])
        pool = f"--pool {deployment['work_pool']['name']} "
        for worker in WORKERS:
            service = services[worker]
            if pool in " ".join(service["command"]):
                limit = int(service["mem_limit"].removesuffix("g")) * 2**30
                assert int(needed) * 10**9 <= limit, (worker, deployment)
                stated += 1
    # Two workers have the pool `cpu`, with four deployments; one has `gpu`.
    assert stated >= 9
