"""SIGTERM and a Prefect that went away end a command in an orderly way."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import nullcontext
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from prefect.utilities.engine import capture_sigterm

from flows.ending import TERMINATED, run_flow, sigterm_cancels, sigterm_unwinds
from mappa_cli.prefect_recorder import drain
from mappa_cli.servers import _running_prefect
from mappa_core.core.errors import OutsideError

NO_SERVER = "http://127.0.0.1:9/api"


def terminate_me() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def in_a_step() -> None:
    terminate_me()
    await asyncio.sleep(60)


async def in_a_callback() -> None:
    """Where asyncio logs what Prefect's handler raises, and goes on."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    loop.call_soon(terminate_me)
    await asyncio.sleep(60)


async def while_all_wait() -> None:
    await asyncio.to_thread(terminate_me)
    await asyncio.sleep(60)


@pytest.mark.parametrize("body", [in_a_step, in_a_callback, while_all_wait])
@pytest.mark.parametrize("nested", [True, False])
def test_sigterm_is_exit_code_143_once_the_flow_has_ended(
    body: Callable[[], Awaitable[None]], nested: bool
) -> None:
    closed: list[str] = []

    async def flow() -> None:
        # As Prefect's engine, our flow, and a flow that it starts.
        with capture_sigterm():
            try:
                with sigterm_cancels(), capture_sigterm() if nested else nullcontext():
                    await asyncio.gather(body(), asyncio.sleep(60))
            finally:
                await asyncio.sleep(0.01)
                closed.append("flow")

    with pytest.raises(SystemExit) as left, sigterm_unwinds():
        run_flow(flow())
    assert left.value.code == TERMINATED
    assert closed == ["flow"]


def test_sigterm_outside_of_a_flow_unwinds_too() -> None:
    # Prefect's handler, where a flow ran in this process before.
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as left, sigterm_unwinds():
        terminate_me()
    assert left.value.code == TERMINATED
    assert signal.getsignal(signal.SIGTERM) is before


async def artifact() -> NoReturn:
    raise httpx.ConnectError("All connection attempts failed")


async def beginning() -> NoReturn:
    raise RuntimeError("Failed to reach API") from httpx.ConnectError("All attempts failed")


@pytest.mark.parametrize("flow", [artifact, beginning])
def test_a_prefect_that_went_away_is_one_line(
    flow: Callable[[], Coroutine[Any, Any, NoReturn]],
) -> None:
    with pytest.raises(OutsideError, match=r"Prefect went away \(ConnectError\).*--resume"):
        run_flow(flow())


def test_another_runtime_error_stays_what_it_is() -> None:
    async def flow() -> None:
        raise RuntimeError("a fault of ours")

    with pytest.raises(RuntimeError, match="a fault of ours"):
        run_flow(flow())


def test_what_a_gone_server_has_recorded_is_not_waited_for() -> None:
    drain(NO_SERVER, since=datetime.now(UTC))


@pytest.mark.parametrize("left", ["", '{"api_url": "http'])
def test_half_a_note_about_a_server_is_no_server(tmp_path: Path, left: str) -> None:
    (tmp_path / "server.json").write_text(left)
    assert _running_prefect(tmp_path) is None


def test_a_server_that_an_earlier_version_started_is_found(tmp_path: Path) -> None:
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/api"
            note = {"api_url": url, "keeper_pid": os.getpid()}
            (tmp_path / "server.json").write_text(json.dumps(note))
            assert _running_prefect(tmp_path) == url
        finally:
            server.shutdown()
            thread.join()


def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", "from mappa_cli.main import main; main()", "train", "--dry-run"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr.endswith("mappa: [Errno 28] No space left on device\n")
    assert "Traceback" not in ended.stderr
    assert "Exception" not in ended.stderr
