"""`mappa bench store`: a million actions through the store, on an embedded Postgres of its own.

    two runs at once, each:
    records ─▶ add_episodes ─▶ rows         actions/s, peak memory, bytes per action
    audit.coach_bias, one episode            seconds, as a SQL user and `mappa show` wait for them
    two runs that record at a steady pace    how much they slow each other

`actions=20000` makes it shorter. The folder is removed at the end.
"""

import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from uuid import UUID

import psycopg

from flows.benches.records import AGENTS, Material
from flows.benches.report import BenchReport, Figure, aimed, machine
from mappa_core.adapters.store.connection import for_psql
from mappa_core.adapters.store.embedded import start_embedded
from mappa_core.adapters.store.schema import upgrade
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.bootstrap import check_space
from mappa_core.domain.errors import ConfigError
from mappa_core.domain.records import Episode
from mappa_core.settings import Settings

ACTIONS = 1_000_000
RUNS = 10
WRITERS = 2
"""Runs that write at once: while the server works on the rows of one, the other makes its own."""
EPISODES_PER_WRITE = 250
BYTES_PER_ACTION = 8_000
"""Asked for on the disk, write-ahead log included."""
PACE_PER_SECOND = 200
"""Turns a run records while two are compared: ten times what a training run makes."""
PACED_SECONDS = 10.0
REPEATS = 5
BIAS = "SELECT * FROM audit.coach_bias"
BIAS_OF_ONE = f"{BIAS} WHERE run = 'bench-3'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One run that was written."""

    actions: int
    an_episode: UUID


def bench_store(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Write, read and time.

    Raises:
        ConfigError: An override other than `actions=NUMBER`.
        DiskFull: The actions do not fit.
    """
    actions = _actions(overrides)
    check_space(settings.home, spare_bytes=actions * BYTES_PER_ACTION + 2**30)
    with _scratch_database(settings) as url:
        store = PostgresStore.open(url)
        try:
            return BenchReport(
                bench="store",
                machine=machine(),
                figures=tuple(_figures(store, url, actions)),
            )
        finally:
            store.close()


def _actions(overrides: Sequence[str]) -> int:
    match [override.partition("=") for override in overrides]:
        case []:
            return ACTIONS
        case [("actions", _, number)] if number.isdecimal() and int(number) >= RUNS:
            return int(number)
        case _:
            raise ConfigError(f"bench store takes actions=NUMBER, at least {RUNS}, and no more")


@contextmanager
def _scratch_database(settings: Settings) -> Generator[str]:
    settings.home.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="bench-store-", dir=settings.home))
    # Postgres may have to run as another user.
    folder.chmod(0o711)
    try:
        with start_embedded(folder / "postgres") as server:
            upgrade(server.url("mappa"))
            yield server.url("mappa")
    finally:
        shutil.rmtree(folder)


def _figures(store: PostgresStore, url: str, actions: int) -> Iterator[Figure]:
    material = Material()
    written: list[Written] = []
    peaks_mib: list[float] = []
    write = partial(_write_run, store, material, actions // RUNS)
    started = time.perf_counter()
    with ThreadPoolExecutor(WRITERS) as pool:
        for run in pool.map(write, (f"bench-{number}" for number in range(RUNS))):
            written.append(run)
            peaks_mib.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    seconds = time.perf_counter() - started
    count = sum(run.actions for run in written)
    rate = count / seconds
    yield Figure(name="actions", value=count, unit="actions")
    yield aimed(
        "written by two runs at once, records and ids made on the way",
        rate,
        "actions/s",
        at_least=5000,
    )
    yield Figure(name="peak memory of the writer", value=peaks_mib[-1], unit="MiB")
    growth = peaks_mib[-1] / peaks_mib[0]
    yield aimed("the same, over that after a tenth", growth, "ratio", at_most=1.1)
    with psycopg.connect(for_psql(url), autocommit=True) as connection:
        yield from _asked(connection, count)
    one = statistics.median(
        _seconds(partial(store.episode, str(run.an_episode))) for run in written
    )
    yield aimed("one episode read", 1000 * one, "ms", at_most=5)
    yield from _side_by_side(store, material)


def _asked(connection: psycopg.Connection, count: int) -> Iterator[Figure]:
    """What a SQL user waits for, on a database that was vacuumed as a server does in time."""
    connection.execute("VACUUM (ANALYZE)")
    size = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert size is not None
    yield Figure(name="on disk", value=size[0] / count, unit="bytes/action")
    questions = {
        "audit.coach_bias of one run": (BIAS_OF_ONE, 0.3),
        "audit.coach_bias of all runs": (BIAS, 3.0),
    }
    for name, (question, at_most) in questions.items():
        ask = partial(connection.execute, question.encode())
        ask()
        seconds = statistics.median(_seconds(ask) for _ in range(REPEATS))
        yield aimed(name, seconds, "s", at_most=at_most)


def _write_run(store: PostgresStore, material: Material, actions: int, name: str) -> Written:
    run = material.open_run(store, name)
    count = actions // len(AGENTS)
    episodes: list[Episode] = []
    for first in range(0, count, EPISODES_PER_WRITE):
        episodes, scores = material.episodes(run, first, min(EPISODES_PER_WRITE, count - first))
        store.add_episodes(episodes, scores)
    return Written(actions=count * len(AGENTS), an_episode=episodes[-1].id)


def _side_by_side(store: PostgresStore, material: Material) -> Iterator[Figure]:
    """Two runs at once, each with connections of its own, as two processes would have."""
    alone = statistics.median(_paced(store, material, "paced-alone"))
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(partial(_paced, store, material), ("paced-left", "paced-right"))
        together = statistics.median(chain.from_iterable(both))
    yield Figure(name="a turn, one run recording", value=1000 * alone, unit="ms")
    yield aimed("the same with two runs, over one", together / alone, "ratio", at_most=1.3)


def _paced(store: PostgresStore, material: Material, name: str) -> list[float]:
    """Seconds that each turn took, recorded one by one at the pace of a busy run."""
    run = material.open_run(store, name)
    played, _ = material.episodes(run, 0, int(PACE_PER_SECOND * PACED_SECONDS) // len(AGENTS))
    for episode in played:
        store.open_episode(replace(episode, turns=(), stop_reason=None, outcome=None))
    seconds: list[float] = []
    due = time.perf_counter()
    for episode in played:
        for turn in episode.turns:
            time.sleep(max(0.0, due - time.perf_counter()))
            due += 1 / PACE_PER_SECOND
            seconds.append(_seconds(partial(store.record_turn, episode, turn)))
    return seconds


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
