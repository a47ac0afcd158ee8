"""A shared server lives as long as its last user, however that one ends."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from mappa_cli.server_process import ServerProcess, file_lock, is_healthy, start_shared
from mappa_cli.servers import free_port
from mappa_core.core.errors import OutsideError

HOLD_A_SERVER = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from mappa_cli.server_process import ServerProcess, file_lock, start_shared
folder, port = Path(sys.argv[1]), sys.argv[2]
server = ServerProcess(
    name="Pages", command=(sys.executable, "-m", "http.server", "--bind", "127.0.0.1", port),
    environment={}, directory=folder, log=folder / "pages.log",
    health_url=f"http://127.0.0.1:{port}/",
)
with file_lock(folder / "use.lock"):
    start_shared(server, folder / "use.lock", ExitStack())
    print("up", flush=True)
    time.sleep(60)
"""


def pages(folder: Path, port: int) -> ServerProcess:
    return ServerProcess(
        name="Pages",
        command=(sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)),
        environment={},
        directory=folder,
        log=folder / "logs" / "pages.log",
        health_url=f"http://127.0.0.1:{port}/",
    )


def within(seconds: float, happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def refuses_connections(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_it_is_up_inside_the_block_and_gone_after_it(tmp_path: Path) -> None:
    server = pages(tmp_path, free_port())
    lock = tmp_path / "use.lock"
    with ExitStack() as after, file_lock(lock):
        start_shared(server, lock, after)
        assert is_healthy(server.health_url)
    assert not is_healthy(server.health_url)
    assert "GET / HTTP" in server.log.read_text()


def test_it_outlives_its_starter_while_another_uses_it(tmp_path: Path) -> None:
    port = free_port()
    server, lock = pages(tmp_path, port), tmp_path / "use.lock"
    with ExitStack() as after:
        with file_lock(lock) as _, ExitStack() as other:
            start_shared(server, lock, after)
            other.enter_context(file_lock(lock))
            kept = other.pop_all()
        time.sleep(0.5)  # the supervisor looks five times a second
        assert is_healthy(server.health_url)
        kept.close()
    assert refuses_connections(port)


def test_a_user_that_is_killed_takes_it_along(tmp_path: Path) -> None:
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD_A_SERVER, str(tmp_path), str(port)], stdout=subprocess.PIPE
    ) as user:
        assert user.stdout is not None
        assert user.stdout.readline() == b"up\n"
        user.send_signal(signal.SIGKILL)
    assert within(5, lambda: refuses_connections(port))


def test_one_that_does_not_start_names_its_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server, lock = pages(tmp_path, taken.getsockname()[1]), tmp_path / "use.lock"
        with ExitStack() as after, file_lock(lock), pytest.raises(OutsideError) as raised:
            start_shared(server, lock, after)
    assert str(raised.value) == f"Pages did not start: its log is {server.log}"
    assert "Address already in use" in server.log.read_text()
