"""The compose file as docker-compose reads it: complete, and closed to the outside."""

import json
from typing import Any

import pytest
import yaml

from tests.integration.cli.servers.compose import compose

ONE_SHOT = {"migrate", "deploy"}


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
