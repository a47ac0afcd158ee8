"""The command line on a database of the test's own; a Prefect server with all of it deployed."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from mappa_cli.main import main
from mappa_cli.servers import prefect_server
from mappa_core.core.settings import Settings
from tests.integration.platform.deployed import Platform

Mappa = Callable[..., tuple[int | str | None, str, str]]


@pytest.fixture
def mappa(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Mappa:
    """Run `mappa ARGUMENTS`; returns exit code, stdout and stderr."""
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)

    def call(*arguments: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["mappa", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return call


@pytest.fixture
def server(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Platform]:
    """A Prefect server that has nothing yet."""
    home = tmp_path / "home"
    monkeypatch.setenv("MAPPA_HOME", str(home))
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    monkeypatch.setenv("PREFECT_WORKER_QUERY_SECONDS", "2")
    monkeypatch.setenv("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with (
        prefect_server(Settings()) as address,
        httpx.Client(base_url=address, timeout=60, trust_env=False) as api,
    ):
        monkeypatch.setenv("PREFECT_API_URL", address)
        yield Platform(api=api, database_url=database_url, folder=tmp_path)


@pytest.fixture
def platform(server: Platform) -> Platform:
    server.set_up()
    server.set_up()  # as when the stack comes up again
    return server
