"""`mappa bench store`: a million actions in the store, on an embedded Postgres of its own.

    two processes, each with runs of its own:
    play_episode, score_episode ─▶ rows      actions/s and peak memory, as training records them
    many more, put there whole               bytes per action
    audit.coach_bias, one episode            seconds, as a SQL user and `mappa show` wait for them
    mappa runs, show, report                 seconds, without the process's own start
    two runs that record at a steady pace    how much they slow each other

`actions=20000` makes it shorter. The folder is removed at the end.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, redirect_stdout
from functools import partial
from io import StringIO
from itertools import chain
from multiprocessing import get_context

import psycopg

from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_cli.benches.scratch import actions_option, scratch_database
from mappa_cli.benches.store_writers import record_at_pace, write_runs
from mappa_cli.printing.console import open_console
from mappa_cli.printing.runs import print_run, runs_table
from mappa_core.core.settings import Settings
from mappa_core.evaluate.run_page import html
from mappa_core.evaluate.run_story import read_story
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store

RUNS = 10
FEWEST_ACTIONS = 400
"""Ten episodes of four turns for each run."""
WRITERS = 2
"""Processes that write at once, as training runs do."""
BYTES_PER_ACTION = 8_000
"""Asked for on the disk, write-ahead log included."""
RECORDED_PER_SECOND = 100
"""Five times what a training run makes; each action is two commits, and a score's words."""
REPEATS = 5
BIAS = "SELECT * FROM audit.coach_bias"
BIAS_OF_ONE = f"{BIAS} WHERE run = 'bench-3'"


def bench_store(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Write, read and time.

    Raises:
        ConfigError: An override other than `actions=NUMBER`.
        DiskFull: The actions do not fit.
    """
    actions = actions_option("store", overrides, FEWEST_ACTIONS)
    with (
        scratch_database(settings, actions * BYTES_PER_ACTION) as database,
        closing(Store.open(database.url)) as store,
    ):
        return BenchReport(bench="store", figures=tuple(_figures(store, database.url, actions)))


def _figures(store: Store, url: str, actions: int) -> Iterator[Figure]:
    with ProcessPoolExecutor(WRITERS, mp_context=get_context("spawn")) as pool:
        shares = [
            [f"bench-{number}" for number in range(RUNS)][one::WRITERS] for one in range(WRITERS)
        ]
        written = list(pool.map(partial(write_runs, url, actions // RUNS), shares))
        count = sum(one.actions for one in written)
        recorded = sum(one.recorded for one in written)
        seconds = max(one.ended for one in written) - min(one.started for one in written)
        yield Figure(name="actions", value=count, unit="actions")
        yield Figure(name="of them recorded as training does", value=recorded, unit="actions")
        yield aimed(
            "turn by turn and score by score, by two runs at once",
            recorded / seconds,
            "actions/s",
            at_least=RECORDED_PER_SECOND,
        )
        peak = max(one.peaks_mib[-1] for one in written)
        growth = max(one.peaks_mib[-1] / one.peaks_mib[0] for one in written)
        yield Figure(name="peak memory of a writer", value=peak, unit="MiB")
        yield aimed("the same, over that after its first run", growth, "ratio", at_most=1.1)
        with psycopg.connect(for_psql(url), autocommit=True) as connection:
            yield from _query_figures(connection, count)
        one = statistics.median(
            _seconds(partial(store.episodes.get_episode, str(episode)))
            for some in written
            for episode in some.episodes
        )
        yield aimed("one episode read", 1000 * one, "ms", at_most=5)
        yield from _command_figures(store)
        yield from _side_by_side(pool, url)


def _query_figures(connection: psycopg.Connection, count: int) -> Iterator[Figure]:
    """What a SQL user waits for, once the server has done what it does behind the last write."""
    connection.execute("VACUUM (ANALYZE)")
    connection.execute("CHECKPOINT")
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


def _command_figures(store: Store) -> Iterator[Figure]:
    """What a person waits for beside the process's own start."""
    run = store.runs.get_run("bench-3")
    commands: dict[str, Callable[[], object]] = {
        "mappa runs": lambda: runs_table(store.runs.list_runs(), store.runs.list_claimed_runs()),
        "mappa show RUN": lambda: print_run(open_console(), store, run),
        "mappa report RUN": lambda: html(read_story(store, run)),
    }
    for name, command in commands.items():
        with redirect_stdout(StringIO()):
            command()
            seconds = statistics.median(_seconds(command) for _ in range(REPEATS))
        yield aimed(f"{name}, started", seconds, "s", at_most=1)


def _side_by_side(pool: ProcessPoolExecutor, url: str) -> Iterator[Figure]:
    record = partial(record_at_pace, url)
    single = statistics.median(pool.submit(record, "paced-alone").result())
    together = statistics.median(chain(*pool.map(record, ("paced-left", "paced-right"))))
    yield Figure(name="a turn, one run recording", value=1000 * single, unit="ms")
    yield aimed("the same with two runs, over one", together / single, "ratio", at_most=1.3)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
