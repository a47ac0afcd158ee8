"""Starts the servers a command needs: Prefect for every run, both pages for `mappa serve`.

    prefect_server   PREFECT_API_URL, or the one that runs in MAPPA_HOME, or a new one
    mlflow_server    the MLflow pages on a database
    serve            the pages of both on what is stored; vLLM, imported, for the next commands

Embedded Prefect keeps its own SQLite file: its migrations need an extension that the embedded
Postgres does not ship. Servers listen on loopback only; what they print is in MAPPA_HOME/logs.
"""

import fcntl
import json
import os
import socket
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from mappa_cli.prefect_recorder import drain
from mappa_cli.server_process import ServerProcess, file_lock, is_healthy, start_shared
from mappa_core.core.errors import OutsideError, PortBusy
from mappa_core.core.settings import Settings

HOST = "127.0.0.1"

QUIET = {
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    # The command line reports errors itself, in one line; Prefect's own words are in its pages.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}
"""For Prefect and its server, unless the environment says otherwise."""

RECORDER = {
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
}
"""For Prefect's server: task runs are written together, at least once a second.

One at a time, which is its default, 1,000 take 17 s and not 3, and SQLite refuses a subflow that
starts in that time: its client waits two seconds, and asks again.
"""


_PREFECT = """
import gc, runpy
gc.set_threshold(100_000)
runpy.run_module("prefect", run_name="__main__", alter_sys=True)
"""
"""`python -m prefect`; by Python's threshold looking for garbage takes a seventh of its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """The embedded Prefect server, as it is written down for the next command."""

    api_url: str
    supervisor_pid: int


@contextmanager
def prefect_server(settings: Settings, port: int | None = None) -> Generator[str]:
    """Point Prefect at a server for as long as the block lasts; yields its API address.

    Enter it before the first `import prefect`: that is when Prefect reads the environment.

    Args:
        settings: Names a server, or the home of the embedded one.
        port: Where a new embedded server listens; a free one by default.

    Raises:
        PortBusy: Another process has `port`.
        OutsideError: The server does not answer, or does not start.
    """
    quiet = {name: os.environ.get(name, value) for name, value in QUIET.items()}
    if settings.prefect_api_url:
        if not is_healthy(f"{settings.prefect_api_url}/health"):
            raise OutsideError(
                f"Prefect does not answer at {settings.prefect_api_url}: start it, or unset "
                "PREFECT_API_URL to use one that is started for the command"
            )
        with environment(quiet):
            yield settings.prefect_api_url
        return
    home = settings.home / "prefect"
    with ExitStack() as after, ExitStack() as stack:
        stack.enter_context(file_lock(home / "use.lock"))
        with file_lock(home / "start.lock", fcntl.LOCK_EX):
            api_url = _running_prefect(home) or _start_prefect(home, settings.logs, port, after)
        here = {"PREFECT_HOME": str(home), "PREFECT_API_URL": api_url}
        stack.enter_context(environment(quiet | here))
        stack.callback(drain, api_url, since=datetime.now(UTC))
        yield api_url


def _running_prefect(home: Path) -> str | None:
    """The address of the server another command started on `home`, if it still runs."""
    try:
        written = json.loads((home / "server.json").read_text())
        # A server that an earlier version started goes on, and two on one file would not do.
        pid = written.pop("keeper_pid", None)
        running = _Running(**({} if pid is None else {"supervisor_pid": pid}) | written)
        os.kill(running.supervisor_pid, 0)
    except (FileNotFoundError, ProcessLookupError, TypeError, ValueError):
        return None
    return running.api_url if is_healthy(f"{running.api_url}/health") else None


def _start_prefect(home: Path, logs: Path, port: int | None, after: ExitStack) -> str:
    port = free_port() if port is None else check_port_free(port, "--prefect-port")
    api_url = f"http://{HOST}:{port}/api"
    server = ServerProcess(
        name="Prefect",
        command=(sys.executable, "-c", _PREFECT, "server", "start"),
        environment={
            **QUIET,
            **RECORDER,
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": api_url,
            "PREFECT_SERVER_API_HOST": HOST,
            "PREFECT_SERVER_API_PORT": str(port),
            "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home / 'prefect.db'}",
            # By default the pages are copied into the installed package, which may be read-only.
            "PREFECT_SERVER_UI_STATIC_DIRECTORY": str(home / "ui"),
        },
        directory=home,
        log=logs / "prefect.log",
        health_url=f"{api_url}/health",
    )
    running = _Running(
        api_url=api_url, supervisor_pid=start_shared(server, home / "use.lock", after)
    )
    # All of it or none: a full disk or a kill leaves no half of it for the next command.
    unfinished = home / "server.json.unfinished"
    unfinished.write_text(json.dumps(asdict(running)))
    unfinished.replace(home / "server.json")
    return api_url


@contextmanager
def mlflow_server(settings: Settings, store_uri: str, port: int) -> Generator[str]:
    """The MLflow pages on `store_uri` while the block lasts; yields their address.

    Raises:
        PortBusy: Another process has `port`.
        OutsideError: The server does not start.
    """
    if urlsplit(store_uri).scheme in {"http", "https"}:
        yield store_uri
        return
    address = f"http://{HOST}:{check_port_free(port, '--mlflow-port')}"
    home = settings.home / "mlflow"
    lock = home / f"serve-{port}.lock"
    server = ServerProcess(
        name="MLflow",
        command=(sys.executable, "-m", "mlflow", "server"),
        environment={
            "DO_NOT_TRACK": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_BACKEND_STORE_URI": store_uri,
            "MLFLOW_DEFAULT_ARTIFACT_ROOT": str(home / "artifacts"),
            "MLFLOW_SERVE_ARTIFACTS": "false",
            "MLFLOW_HOST": HOST,
            "MLFLOW_PORT": str(port),
            "MLFLOW_WORKERS": "1",
            # Eight more processes and a gigabyte, for evaluations that run on the server.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        },
        directory=home,
        log=settings.logs / "mlflow.log",
        health_url=f"{address}/health",
    )
    with ExitStack() as after, file_lock(lock):
        start_shared(server, lock, after)
        yield address


@contextmanager
def serve(
    settings: Settings, prefect_port: int, mlflow_port: int, *, engines: bool = False
) -> Generator[Mapping[str, str]]:
    """Both pages while the block lasts; yields their addresses by name.

    A Prefect server that already runs on this home is shown where it is. With `engines`, the
    process that vLLM servers are forked from is there for the next commands, too.

    Raises:
        PortBusy: A port is taken.
        OutsideError: A server or the database does not start.
    """
    from mappa_core.app.databases import opened_mlflow
    from mappa_core.rollout.engines.vllm import fork_server

    with ExitStack() as stack:
        api_url = stack.enter_context(prefect_server(settings, prefect_port))
        store_uri = stack.enter_context(opened_mlflow(settings))
        pages = stack.enter_context(mlflow_server(settings, store_uri, mlflow_port))
        if engines:
            stack.enter_context(fork_server.kept(settings.logs))
        yield {"Prefect": api_url.removesuffix("/api"), "MLflow": pages}


def free_port() -> int:
    """A loopback port that no process has."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def check_port_free(port: int, flag: str) -> int:
    """`port`, if no process has it.

    Raises:
        PortBusy: One has; the message names the flag that takes another.
    """
    with socket.socket() as probe:
        # As the servers do: a port whose last connections are still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise PortBusy(f"port {port} is taken: stop what uses it, or set {flag}") from error
    return port


@contextmanager
def environment(variables: Mapping[str, str]) -> Generator[None]:
    """Set environment variables for the block, for this process and those it starts.

    Where Prefect was imported before, its settings are a copy by now and are set too.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with ExitStack() as stack:
            if "prefect" in sys.modules and "PREFECT_API_URL" in variables:
                from prefect.settings import PREFECT_API_URL, temporary_settings

                stack.enter_context(
                    temporary_settings({PREFECT_API_URL: variables["PREFECT_API_URL"]})
                )
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
