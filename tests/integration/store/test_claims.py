"""Which runs have a process: known while it lives, however it ends."""

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import psycopg
import pytest

from mappa_cli.printing.runs import runs_json
from mappa_core.core.errors import RunBusy
from mappa_core.core.records.runs import RunStatus
from mappa_core.store import claims
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.builders import make_policy, make_run
from tests.conftest import execute

RUN = make_run("claimed")
HOLDER = """
import sys, time
from uuid import UUID
from mappa_core.store.store import Store
with Store.open(sys.argv[1]).runs.claim_run(UUID(sys.argv[2])):
    print("claimed", flush=True)
    time.sleep(60)
"""


def within_seconds(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def opened(store: Store) -> Store:
    store.runs.add_run(RUN)
    return store


def test_a_run_has_one_process_at_a_time(
    opened: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "TAKE_SECONDS", 0.1)
    other = Store.open(database_url)
    with opened.runs.claim_run(RUN.id):
        assert other.runs.list_claimed_runs() == {RUN.id}
        with pytest.raises(RunBusy, match="in the hands of another process"):
            other.runs.claim_run(RUN.id)
    assert within_seconds(lambda: not other.runs.list_claimed_runs())
    with other.runs.claim_run(RUN.id):
        assert opened.runs.list_claimed_runs() == {RUN.id}
    other.close()


def test_who_comes_second_waits(opened: Store, database_url: str) -> None:
    other = Store.open(database_url)

    def second() -> None:
        with other.lock(RUN.id):
            pass

    with ThreadPoolExecutor() as threads:
        with opened.lock(RUN.id):
            waiting = threads.submit(second)
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
        waiting.result(10)
    other.close()


def test_a_run_whose_process_was_killed_is_lost(opened: Store, database_url: str) -> None:
    words = [sys.executable, "-c", HOLDER, database_url, str(RUN.id)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        assert [line["status"] for line in listed(opened)] == ["running"]
        process.kill()
    assert within_seconds(lambda: [line["status"] for line in listed(opened)] == ["lost"])


def listed(store: Store) -> list[dict[str, str | int | None]]:
    return runs_json(store.runs.list_runs(), store.runs.list_claimed_runs())


def test_a_claim_outlives_an_outage(
    opened: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CHECK_SECONDS", 0.05)
    with opened.runs.claim_run(RUN.id):
        execute(
            database_url,
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'",
        )
        assert within_seconds(lambda: opened.runs.list_claimed_runs() == {RUN.id})


def test_who_lost_a_run_in_an_outage_writes_no_more(
    opened: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(claims, "TAKE_SECONDS", 0.1)
    other, taken, done = Store.open(database_url), Event(), Event()

    def take_over() -> None:
        # Next in the queue for the very lock: nobody can be faster.
        with other.lock(RUN.id):
            taken.set()
            done.wait(30)

    def refused() -> bool:
        try:
            opened.policies.add_policy_version(make_policy(RUN))
        except RunBusy:
            return True
        return False

    with ThreadPoolExecutor() as threads:
        with opened.runs.claim_run(RUN.id):
            waiting = threads.submit(take_over)
            query = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            assert within_seconds(lambda: bool(rows(database_url, query)))
            execute(
                database_url,
                "SELECT pg_terminate_backend(pid) FROM pg_locks "
                "WHERE locktype = 'advisory' AND granted",
            )
            assert taken.wait(10)
            assert within_seconds(refused)
            with pytest.raises(RunBusy, match="taken over by another process"):
                opened.runs.set_status(RUN.id, RunStatus.COMPLETED)
        done.set()
        waiting.result(10)
    assert opened.runs.get_run(RUN.name).status is RunStatus.RUNNING
    with opened.runs.claim_run(RUN.id):
        opened.runs.set_status(RUN.id, RunStatus.COMPLETED)
    other.close()


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(for_psql(url)) as connection:
        return connection.execute(query.encode()).fetchall()
