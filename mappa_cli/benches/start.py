"""`mappa bench start`: how long a second `mappa train` takes until it plays, and where that goes.

    mappa bench start [runs=3]

Each start is a command of its own, of the quickstart, which is stopped when it begins to play; the
run it made stays in MAPPA_HOME. The first is not counted: it unpacks the model. Half of the others
find what `mappa serve --engines` keeps.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from mappa_cli.benches import bench_options
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.core.errors import ConfigError, OutsideError
from mappa_core.core.settings import Settings

AIM_SECONDS = 12.0
"""Of a second start beside `mappa serve --engines`, on two cores."""
PLAYS = "held-out 0:"
"""How the line begins that is printed when the first episodes are played."""
STAGES: Mapping[str, str] = {
    "starting Prefect": "the command's first imports",
    "starting model": "Prefect, and the command's other imports",
    "starting sandbox": "the tokenizer",
    "starting database": "the sandbox",
    "starting engines": "database and coach",
    PLAYS: "the rest of the servers' start, the learner's model, the exam",
}
"""What a start did until it printed each of these."""


def bench_start(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Start the quickstart again and again, by itself and beside a kept vLLM.

    Raises:
        ConfigError: An override other than `runs=NUMBER`.
        OutsideError: A start failed.
    """
    runs = bench_options("start", overrides, runs="3")["runs"]
    if not runs.isdecimal() or int(runs) < 1:
        raise ConfigError(f"bench start takes runs=NUMBER, at least 1: runs={runs} is none")
    from mappa_cli.servers import free_port, serve

    _started(settings)
    alone = [_started(settings) for _ in range(int(runs))]
    with serve(settings, free_port(), free_port(), engines=True):
        beside = [_started(settings) for _ in range(int(runs))]
    return BenchReport(bench="start", figures=tuple(start_figures(alone, beside)))


def start_figures(
    alone: Sequence[Mapping[str, float]], beside: Sequence[Mapping[str, float]]
) -> Iterator[Figure]:
    """List medians: whole starts, what a kept vLLM leaves of one, and where that goes."""
    whole, left = (median(one[PLAYS] for one in starts) for starts in (alone, beside))
    yield Figure(name="by itself, to the first episodes", value=whole, unit="s")
    yield aimed("beside mappa serve --engines", left, "s", at_most=AIM_SECONDS)
    yield Figure(name="the second over the first", value=left / whole, unit="ratio")
    before = 0.0
    for line, what in STAGES.items():
        until = median(one[line] for one in beside)
        yield Figure(name=f"of the second: {what}", value=until - before, unit="s")
        before = until


def stages_of(lines: Iterable[tuple[float, str]]) -> Mapping[str, float]:
    """Say after how many seconds each stage ended, of lines with the seconds they came after.

    Raises:
        OutsideError: The last of them did not come.
    """
    found: dict[str, float] = {}
    said = ""
    for seconds, line in lines:
        said = line.strip() or said
        found |= {stage: seconds for stage in STAGES if line.startswith(stage)}
        if PLAYS in found:
            break
    if lacking := [stage for stage in STAGES if stage not in found]:
        raise OutsideError(f"a start ended and never said `{lacking[-1]}`, but at last: {said}")
    return found


def _started(settings: Settings) -> Mapping[str, float]:
    """Start a run as a person would, and stop it when it plays."""
    typed = ("train", "--config", "quickstart", "name=bench-start", "rollout.iterations=1")
    command = (sys.executable, "-u", "-c", "from mappa_cli.start import command; command()", *typed)
    begun = time.monotonic()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"MAPPA_HOME": str(settings.home)},
        text=True,
    ) as process:
        try:
            printed = process.stdout or ()
            return stages_of((time.monotonic() - begun, line) for line in printed)
        finally:
            process.send_signal(signal.SIGINT)
            for _ in process.stdout or ():
                pass
