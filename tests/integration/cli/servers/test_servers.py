"""The real Prefect and MLflow servers, as a command uses them."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from mappa_cli.servers import check_port_free, environment, mlflow_server, prefect_server
from mappa_core.core.errors import OutsideError, PortBusy
from mappa_core.core.settings import Settings

TASK_RUNS = 60
RUN_A_FLOW = f"""
import asyncio
from mappa_cli.servers import prefect_server
from mappa_core.core.settings import Settings

with prefect_server(Settings()) as api_url:
    from prefect import flow, task

    @task
    async def step(number):
        return number

    @flow(persist_result=False)
    async def steps():
        await asyncio.gather(*(step(number) for number in range({TASK_RUNS})))

    asyncio.run(steps())
    print(api_url)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def settings(home: Path) -> Settings:
    return Settings(MAPPA_HOME=home, PREFECT_API_URL=None, MLFLOW_TRACKING_URI=None)


@pytest.fixture(scope="module")
def api_url(settings: Settings) -> Iterator[str]:
    with prefect_server(settings) as address:
        yield address


def command_in(home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RUN_A_FLOW],
        env={**os.environ, "MAPPA_HOME": str(home)} | {"PREFECT_API_URL": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_new_server_answers_and_shows_its_pages(api_url: str, home: Path) -> None:
    assert httpx.get(f"{api_url}/health").json() is True
    assert "<title>Prefect" in httpx.get(api_url.removesuffix("/api"), follow_redirects=True).text
    assert httpx.get(f"{api_url}/admin/settings").json()["server"]["analytics_enabled"] is False
    assert (home / "prefect" / "prefect.db").stat().st_size > 0


def test_the_block_points_this_process_at_it(api_url: str, home: Path) -> None:
    assert os.environ["PREFECT_API_URL"] == api_url
    assert os.environ["PREFECT_HOME"] == str(home / "prefect")


def test_another_command_shares_it_and_leaves_every_task_run_recorded(
    api_url: str, home: Path
) -> None:
    command = command_in(home)

    assert command.stderr == ""
    assert command.stdout == f"{api_url}\n"
    task_runs = httpx.post(f"{api_url}/task_runs/filter", json={"limit": 200}).json()
    assert [run["state_type"] for run in task_runs] == ["COMPLETED"] * TASK_RUNS


def test_an_address_where_nothing_answers_is_one_line(home: Path) -> None:
    settings = Settings(MAPPA_HOME=home, PREFECT_API_URL="http://127.0.0.1:1/api")
    with (
        pytest.raises(OutsideError, match=r"does not answer at http://127\.0\.0\.1:1/api: "),
        prefect_server(settings),
    ):
        raise AssertionError("entered without a server")


def test_a_busy_port_is_named_with_the_flag_that_takes_another(settings: Settings) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortBusy) as raised, mlflow_server(settings, "sqlite://", port):
            raise AssertionError("entered without a port")
    assert str(raised.value) == f"port {port} is taken: stop what uses it, or set --mlflow-port"


def test_the_mlflow_pages_open_on_the_given_records_and_keep_the_address_out_of_sight(
    settings: Settings, home: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store_uri = f"sqlite:///{home / 'secret-words.db'}"

    with mlflow_server(settings, store_uri, port) as address:
        assert address == f"http://127.0.0.1:{port}"
        assert "<title>MLflow" in httpx.get(address).text
        found = httpx.get(f"{address}/api/2.0/mlflow/experiments/search?max_results=1")
        assert found.is_success
        assert "secret-words" not in command_lines()
    assert check_port_free(port, "--mlflow-port") == port
    assert "secret-words" not in (home / "logs" / "mlflow.log").read_text()


def command_lines() -> str:
    processes = psutil.process_iter(["cmdline"])
    return "\n".join(" ".join(process.info["cmdline"] or ()) for process in processes)


def test_a_given_mlflow_server_is_shown_as_it_is(settings: Settings) -> None:
    with mlflow_server(settings, "https://mlflow.example", 5000) as address:
        assert address == "https://mlflow.example"


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPPA_TEST_SET", "before")
    monkeypatch.delenv("MAPPA_TEST_UNSET", raising=False)
    with environment({"MAPPA_TEST_SET": "inside", "MAPPA_TEST_UNSET": "inside"}):
        assert os.environ["MAPPA_TEST_SET"] == os.environ["MAPPA_TEST_UNSET"] == "inside"
    assert os.environ["MAPPA_TEST_SET"] == "before"
    assert "MAPPA_TEST_UNSET" not in os.environ
