"""The compose file as docker-compose reads it: complete, and closed to the outside."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ONE_SHOT = {"migrate", "deploy"}


def compose(*arguments: str, password: str | None) -> subprocess.CompletedProcess[str]:
    command = shutil.which("docker-compose")
    if command is None:
        if os.environ.get("CI"):
            pytest.fail("docker-compose is missing: apt-get install docker-compose")
        pytest.skip("docker-compose is not installed")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    if password is not None:
        environment["POSTGRES_PASSWORD"] = password
    return subprocess.run(
        [command, "--file", str(ROOT / "docker-compose.yml"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    resolved = compose("--profile", "gpu", "config", password="letmein")
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


def test_what_others_wait_for_says_when_it_is_ready(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, wait in service.get("depends_on", {}).items():
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in services[other], (name, other)
            else:
                assert other in ONE_SHOT, (name, other)


def test_the_password_is_asked_for_and_in_no_image(services: dict[str, Any]) -> None:
    refused = compose("config", password=None)
    assert refused.returncode != 0
    assert "choose one in .env" in refused.stderr
    builds = [service["build"] for service in services.values() if "build" in service]
    assert builds
    assert "letmein" not in json.dumps(builds)
