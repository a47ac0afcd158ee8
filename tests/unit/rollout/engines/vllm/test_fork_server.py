"""A server forked by a fork_server never outlives the process that asked for it."""

import asyncio
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.core.errors import EngineError
from mappa_core.models.serving import fork_server as fork_servers
from mappa_core.models.serving.fork_server import NOTHING, ForkServer
from mappa_core.models.serving.server import ForkedServers, Server
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm import command
from mappa_core.rollout.engines.vllm import fork_server as engine_fork_server

# In the place of vLLM: starts a child of its own, as vLLM does, and writes down both process ids.
FAMILY = """
import os, subprocess, sys, time
from mappa_core.models.serving.fork_server_script import serve_requests

arguments = serve_requests(*sys.argv[1:])
if arguments is None:
    sys.exit(7)
print("a server with", *arguments, *os.environ.get("CUDA_VISIBLE_DEVICES", ""), flush=True)
if len(arguments) > 1 and arguments[1].isdecimal():
    sys.exit(int(arguments[1]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(arguments[0] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid} {os.getppid()}")
os.rename(arguments[0] + ".part", arguments[0])
time.sleep(600)
"""

# Asks for a server and waits to be killed.
PARENT = """
import sys, time
from pathlib import Path
from mappa_core.models.serving.fork_server import ForkServer

fork_server = ForkServer(Path(sys.argv[1]), {}, Path(sys.argv[2]))
liveness = fork_server.fork([sys.argv[3]], Path(sys.argv[2]))
time.sleep(600)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "family.py"
    path.write_text(FAMILY)
    return path


@contextmanager
def a_fork_server(script: Path, log: Path) -> Generator[ForkServer]:
    fork_server = ForkServer(script, os.environ, log)
    try:
        yield fork_server
    finally:
        fork_server.close()


def read_pids(path: Path) -> list[int]:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, "the family did not start"
        time.sleep(0.02)
    return [int(pid) for pid in path.read_text().split()]


def alive(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 15
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, f"still running: {[p for p in pids if alive(p)]}"
        time.sleep(0.02)


def test_the_whole_family_goes_when_the_asker_is_killed(script: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, script, tmp_path / "log", tmp_path / "pids"]
    with subprocess.Popen(command) as parent:
        pids = read_pids(tmp_path / "pids")
        assert all(map(alive, pids))
        parent.send_signal(signal.SIGKILL)
    wait_until_gone(pids)


def test_the_family_goes_when_its_liveness_socket_closes(script: Path, tmp_path: Path) -> None:
    with a_fork_server(script, tmp_path / "log") as fork_server:
        liveness = fork_server.fork([str(tmp_path / "pids")], tmp_path / "log")
        other = fork_server.fork([str(tmp_path / "others")], tmp_path / "log")
        pids, others = read_pids(tmp_path / "pids"), read_pids(tmp_path / "others")
        liveness.shutdown(socket.SHUT_WR)
        assert liveness.recv(1) == b"", "the guard closes its end"
        wait_until_gone(pids)
        assert all(map(alive, others)), "and no other's"
        other.close()
        wait_until_gone(others)


def test_the_server_goes_when_its_guard_is_killed(script: Path, tmp_path: Path) -> None:
    with a_fork_server(script, tmp_path / "log") as fork_server:
        liveness = fork_server.fork([str(tmp_path / "pids")], tmp_path / "log")
        server, child, guard = read_pids(tmp_path / "pids")
        os.kill(guard, signal.SIGKILL)
        wait_until_gone([server])
        assert liveness.recv(1) == b""
        os.kill(child, signal.SIGKILL)


def test_a_server_that_ends_by_itself_is_noticed(script: Path, tmp_path: Path) -> None:
    with a_fork_server(script, tmp_path / "log") as fork_server:
        liveness = fork_server.fork(["x", "3"], tmp_path / "server.log")
        liveness.settimeout(30)
        assert liveness.recv(1) == b""
    assert (tmp_path / "server.log").read_text() == "a server with x 3\n"


def test_each_server_sees_its_own_gpus(script: Path, tmp_path: Path) -> None:
    with a_fork_server(script, tmp_path / "log") as fork_server:
        for gpu in ("2", "5"):
            seen = {"CUDA_VISIBLE_DEVICES": gpu}
            liveness = fork_server.fork(["x", "3"], tmp_path / gpu, seen)
            liveness.settimeout(30)
            assert liveness.recv(1) == b""
    assert (tmp_path / "2").read_text() == "a server with x 3 2\n"
    assert (tmp_path / "5").read_text() == "a server with x 3 5\n"


def test_servers_live_on_without_the_fork_server_and_the_next_gets_a_new_one(
    script: Path, tmp_path: Path
) -> None:
    with a_fork_server(script, tmp_path / "log") as fork_server:
        first = fork_server.fork([str(tmp_path / "first")], tmp_path / "log")
        pids = read_pids(tmp_path / "first")
        assert fork_server.pid is not None
        os.kill(fork_server.pid, signal.SIGKILL)
        wait_until_gone([fork_server.pid])
        second = fork_server.fork([str(tmp_path / "second")], tmp_path / "log")
        assert all(map(alive, pids + read_pids(tmp_path / "second")))
        first.close()
        second.close()


def test_a_zygote_that_fails_to_import_ends_the_wait(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import no_such_package\n")
    with a_fork_server(script, tmp_path / "vllm.log") as fork_server:
        server = Server(fork_server, (), tmp_path / "vllm-solver.log")
        with pytest.raises(EngineError, match=r"ended.*vllm\.log"):
            asyncio.run(server.start(60))
        asyncio.run(server.stop())
    assert "no_such_package" in (tmp_path / "vllm.log").read_text()


class Asked(ForkServer):
    """Keeps what it is asked with, and starts nothing."""

    def fork(
        self, arguments: Sequence[str], log: Path, variables: Mapping[str, str] = NOTHING
    ) -> socket.socket:
        self.variables = dict(variables)
        raise EngineError("nothing is started")


@pytest.mark.parametrize("depth", [1, 120])
def test_vllms_sockets_are_in_the_servers_folder_where_their_paths_fit(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as short:
        (folder := Path(short, "t" * depth)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        fork_server = Asked(tmp_path, {}, tmp_path / "log")
        server = Server(fork_server, (), tmp_path / "log")
        with pytest.raises(EngineError, match="nothing is started"):
            asyncio.run(server.start(1))
        own = str(server.address.parent)
        asyncio.run(server.stop())
    assert fork_server.variables == ({"VLLM_RPC_BASE_PATH": own} if depth == 1 else {})


class Crowded(ForkServer):
    """In a process with thousands of open files."""

    def fork(
        self, arguments: Sequence[str], log: Path, variables: Mapping[str, str] = NOTHING
    ) -> socket.socket:
        with super().fork(arguments, log, variables) as liveness:
            return socket.socket(fileno=fcntl.fcntl(liveness, fcntl.F_DUPFD_CLOEXEC, 2000))


@pytest.fixture
def many_files() -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_an_end_is_noticed_however_many_files_are_open(script: Path, tmp_path: Path) -> None:
    fork_server = Crowded(script, os.environ, tmp_path / "vllm.log")
    server = Server(fork_server, ("x", "3"), tmp_path / "vllm-solver.log")
    with pytest.raises(EngineError, match="ended while starting"):
        asyncio.run(server.start(60))
    asyncio.run(server.stop())
    fork_server.close()


def test_servers_come_from_the_prestarted_one_whatever_libraries_set_since(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_servers, "SCRIPT", script)
    log = tmp_path / "log"
    with fork_servers.prestarted({"OMP_NUM_THREADS": "2"}, log):
        early = fork_servers.open_fork_server({"OMP_NUM_THREADS": "2"}, log)
        later = fork_servers.open_fork_server({"OMP_NUM_THREADS": "2", "KMP_X": "1"}, log)
        assert early.pid is not None
        assert later is early
        other = fork_servers.open_fork_server({"OMP_NUM_THREADS": "1"}, log)
        assert other is not early


def test_a_server_that_was_begun_is_the_one_that_is_opened(script: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with a_fork_server(script, tmp_path / "vllm.log") as fork_server:
        servers = ForkedServers(fork_server)
        for number, name in enumerate(("first", "second", "third")):
            servers.begin(number, (str(tmp_path / name),), log)
        pids, others, unopened = (
            read_pids(tmp_path / name) for name in ("first", "second", "third")
        )
        opened = servers.open(0, [str(tmp_path / "first")], log)
        begun = opened.begin()
        assert opened.begin() is begun, "it runs already"
        with pytest.raises(EngineError, match="not running"):
            _ = servers.open(0, (str(tmp_path / "first"),), log).address
        with pytest.raises(EngineError, match="not running"):
            _ = servers.open(1, ("something", "else"), log).address
        wait_until_gone(others)

        servers.close()
        wait_until_gone(unopened)
        assert all(map(alive, pids)), "who opened a server ends it"
        folder = opened.address.parent
        asyncio.run(opened.stop())
        wait_until_gone(pids)
        assert not folder.exists()


def test_an_engine_that_is_opened_inside_takes_the_servers_that_were_begun(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_servers, "SCRIPT", script)
    monkeypatch.chdir(tmp_path)
    setup = EngineSetup(
        config=EngineConfig(device="cpu", dtype="float32"),
        model=str(tmp_path / "pids"),
        agents=("a", "b"),
        end_token_ids=(),
        work_directory=tmp_path,
        log_directory=tmp_path,
    )
    with engine_fork_server.prestarted(setup.config, tmp_path) as begin:
        begin(setup)
        servers = engine_fork_server.open_servers(setup)
        later = replace(setup, end_token_ids=(2,))
        opened = [servers.open(*each) for each in command.openings(later, "cpu")]
        folders = [each.address.parent for each in opened]
        assert len(set(folders)) == 2, "both run"
        other = engine_fork_server.open_servers(setup)
        assert other is not servers, "another engine has its own"
    assert all(folder.exists() for folder in folders), "the engine ends its servers"
    for each in opened:
        each.abandon()
    assert not any(folder.exists() for folder in folders)


def test_servers_on_a_gpu_and_servers_that_run_already_are_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_fork_server, "resolve_device", lambda _: "cuda")
    monkeypatch.setattr(ForkServer, "start", lambda _: None)
    monkeypatch.setattr(ForkServer, "fork", lambda *_: pytest.fail("a server was begun"))
    for config in (EngineConfig(), EngineConfig(urls=("http://there",))):
        setup = EngineSetup(
            config=config,
            model="m",
            agents=("a",),
            end_token_ids=(),
            work_directory=tmp_path,
            log_directory=tmp_path,
        )
        with engine_fork_server.prestarted(config, tmp_path) as begin:
            begin(setup)


@pytest.mark.parametrize("depth", [1, 120])
def test_later_commands_find_the_one_that_is_kept(
    script: Path, tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_servers, "SCRIPT", script)
    log, given = tmp_path / ("t" * depth) / "vllm.log", dict(os.environ)
    with fork_servers.kept(given, log):
        found = fork_servers.open_fork_server(given, log)
        with fork_servers.prestarted(given | {"KMP_X": "1"}, log):
            early = fork_servers.open_fork_server(given, log)
            begun = early.fork([str(tmp_path / "early")], log)
            assert early.pid is None
        monkeypatch.chdir(tmp_path)
        liveness = found.fork(["pids"], Path("server.log"), {"CUDA_VISIBLE_DEVICES": "2"})
        pids = read_pids(tmp_path / "pids")
        assert found.pid is None, "it was started elsewhere"
        assert (tmp_path / "server.log").read_text() == "a server with pids 2\n"
        # Closed before it has written them, it would go without a word.
        family = read_pids(tmp_path / "early")
        begun.close()
        wait_until_gone(family)

    assert all(map(alive, pids)), "a server lives on without it"
    next_one = found.fork([str(tmp_path / "next")], log)
    assert found.pid is not None, "and the next comes from one of its own"
    for each, family in ((liveness, pids), (next_one, read_pids(tmp_path / "next"))):
        each.close()
        wait_until_gone(family)
    found.close()


def test_one_that_is_kept_is_passed_by_for_servers_of_another_environment(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_servers, "SCRIPT", script)
    log, given = tmp_path / "vllm.log", dict(os.environ) | {"OMP_NUM_THREADS": "2"}
    with fork_servers.kept(given, log):
        here = fork_servers.open_fork_server(given | {"PATH": "/elsewhere"}, log)
        with here.fork([str(tmp_path / "here")], log):
            _, child, _ = read_pids(tmp_path / "here")
            assert here.pid is None, "shells differ in it"
            assert b"\0PATH=/elsewhere\0" in Path(f"/proc/{child}/environ").read_bytes()
        other = fork_servers.open_fork_server(given | {"OMP_NUM_THREADS": "1"}, log)
        with other.fork([str(tmp_path / "pids")], log):
            read_pids(tmp_path / "pids")
            assert other.pid is not None
        other.close()


def test_of_two_that_are_kept_the_later_is_found_whatever_becomes_of_the_earlier(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_servers, "SCRIPT", script)
    log, given = tmp_path / "vllm.log", dict(os.environ)
    earlier = fork_servers.kept(given, log)
    earlier.__enter__()
    with fork_servers.kept(given, log):
        earlier.__exit__(None, None, None)
        found = fork_servers.open_fork_server(given, log)
        with found.fork([str(tmp_path / "pids")], log):
            read_pids(tmp_path / "pids")
            assert found.pid is None
        found.close()
    assert not log.with_suffix(".socket").exists()


def test_one_that_cannot_import_is_not_said_to_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, log = tmp_path / "broken.py", tmp_path / "vllm.log"
    script.write_text("import no_such_package\n")
    monkeypatch.setattr(fork_servers, "SCRIPT", script)
    with (
        pytest.raises(EngineError, match=r"ended: read .*vllm\.log"),
        fork_servers.kept(dict(os.environ), log),
    ):
        raise AssertionError("it is kept")
    assert "no_such_package" in log.read_text()
    assert not log.with_suffix(".socket").exists()
