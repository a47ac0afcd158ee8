"""`mappa bench learner`: one update of a small model, beside TRL's on the same tokens.

    mappa bench learner trl_python=/path/to/an/environment/with/trl/bin/python

Each measurement is a process of its own: what one leaves in memory is not the next one's. TRL is
measured at each micro-batch size in each type, and compared with at its fastest: ours and that one
are measured in turn, as the machine's speed drifts. The roofline is what the machine's largest
products keep up in the types that ours are of.

Ours computes layers again on the way back (`learner.gradient_checkpointing`), so that four times
the tokens of a run's default fit in less memory, at up to a fifth less speed (docs/decisions.md,
"What an update's products are compared with"). A run's defaults are
`gradient_checkpointing=false micro_batch_tokens=2048`; TRL is measured without checkpointing, and
with `trl_gradient_checkpointing=false,true` both ways.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import harmonic_mean, mean
from typing import Literal

from pydantic import TypeAdapter

from mappa_cli.benches import bench_options
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.core import heap
from mappa_core.core.errors import ConfigError, LearnerError
from mappa_core.core.settings import Settings
from mappa_core.train.learners.roofline import Products

MAPPA = (sys.executable, "-m", "mappa_cli.benches.learner_worker")
TRL_SCRIPT = Path(__file__).parents[2] / "infra/bench/trl_update.py"
SPEED_AIM, SHARED_AIM, MEMORY_AIM, PEAK_AIM = 1.5, 3.5, 0.7, 0.6
SETTINGS = ("lora", "full", "shared")
OURS_ALONE = ("OMP_WAIT_POLICY", "TQDM_DISABLE")
"""Variables that the command line sets for its own processes (`flows`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What can be chosen on the command line, as `NAME=VALUE`."""

    trl_python: str = ""
    sequences: str = "32"
    micro_batches: str = "1,2"
    dtype: str = "auto"
    """Of our products."""
    trl_dtypes: str = "float32,bfloat16"
    micro_batch_tokens: str = "8192"
    """Of two passes of ours."""
    gradient_checkpointing: str = "true"
    """Of ours."""
    trl_gradient_checkpointing: str = "false"
    settings: str = ",".join(SETTINGS)
    turns: str = "2"
    """How often ours is measured, and TRL at its fastest."""
    model: str = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence: token ids, and what it is worth."""

    prompt: list[int]
    response: list[int]
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One measurement, as the worker and TRL's script read it."""

    model: str
    weights: Literal["lora", "full"]
    rank: int = 16
    alpha: int = 32
    threads: int
    micro_batch_tokens: int
    gradient_checkpointing: bool
    samples: tuple[Row, ...]
    dtype: str
    """Of products: `learner.dtype`, or TRL's by its name."""
    micro_batch: int | None = None
    """Sequences at once, for TRL alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One update."""

    tokens_per_second: float
    """Real tokens: prompts and responses, without padding, shared ones as often as they occur."""
    tokens_per_cpu_second: float
    """The same over all threads' CPU time: what else the machine does matters less."""
    extra_bytes: float
    """Peak over what was resident before."""
    products: Products | None = None
    """Of an update that was profiled; TRL's is not."""


def bench_learner(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Measure every setting, and TRL where an environment with it is named.

    Raises:
        ConfigError: An option does not exist, or TRL's environment is not there.
        LearnerError: A measurement failed.
    """
    from mappa_core.models.resolve import resolve_model

    options = _options(overrides)
    model = str(resolve_model(options.model, settings.models))
    figures: list[Figure] = []
    for setting in options.settings.split(","):
        rows = _rows(int(options.sequences), shared=setting == "shared")
        figures += _compared(setting, rows, model, options)
    absent = () if options.trl_python else ("TRL, for trl_python=... names no environment with it",)
    return BenchReport(bench="learner", figures=tuple(figures), absent=absent)


def _options(overrides: Sequence[str]) -> Options:
    options = Options(**bench_options("learner", overrides, **asdict(Options())))
    _check_numbers(options)
    for setting in options.settings.split(","):
        if setting not in SETTINGS:
            settings = ", ".join(SETTINGS)
            raise ConfigError(f"bench learner has no setting {setting}: choose from {settings}")
    python = options.trl_python
    if python and not os.access(python, os.X_OK):
        raise ConfigError(f"trl_python={python} is no interpreter: name one that imports trl")
    if python and not TRL_SCRIPT.exists():
        raise ConfigError("TRL is measured from a checkout of MAPPA, which has infra/bench")
    return options


def _check_numbers(options: Options) -> None:
    for name in ("sequences", "turns", "micro_batch_tokens"):
        value = getattr(options, name)
        if not value.isdecimal() or not int(value):
            raise ConfigError(f"{name}={value} is no number above 0: write it as {name}=32")
    sizes = options.micro_batches
    if not all(each.isdecimal() and int(each) for each in sizes.split(",")):
        raise ConfigError(f"micro_batches={sizes} names no sizes: write them as micro_batches=1,2")
    switches = {
        "gradient_checkpointing": [options.gradient_checkpointing],
        "trl_gradient_checkpointing": options.trl_gradient_checkpointing.split(","),
    }
    for name, values in switches.items():
        if not set(values) <= {"false", "true"}:
            raise ConfigError(f"{name}={','.join(values)} is neither true nor false: write one")


def _rows(count: int, *, shared: bool) -> list[Row]:
    """Sequences of 32 to 512 tokens, half of each a prompt; shared: four of each prompt."""
    drawn = random.Random(0)  # noqa: S311
    rows: list[Row] = []
    for number in range(count):
        length = drawn.randint(32, 512)
        prompt = [drawn.randrange(100, 40_000) for _ in range(length // 2)]
        if shared:
            prompt = (
                rows[-1].prompt
                if number % 4
                else [drawn.randrange(100, 40_000) for _ in range(384)]
            )
            length = len(prompt) + drawn.randint(32, 128)
        response = [drawn.randrange(100, 40_000) for _ in range(length - len(prompt))]
        rows.append(Row(prompt=prompt, response=response, advantage=drawn.choice((-1.0, 1.0))))
    return rows


def _compared(setting: str, rows: Sequence[Row], model: str, options: Options) -> list[Figure]:
    """Figures of one setting; with TRL's, ratios."""
    spec = Spec(
        model=model,
        weights="full" if setting == "full" else "lora",
        threads=len(os.sched_getaffinity(0)),
        micro_batch_tokens=int(options.micro_batch_tokens),
        gradient_checkpointing=options.gradient_checkpointing == "true",
        samples=tuple(rows),
        dtype=options.dtype,
    )
    tokens = sum(len(row.prompt) + len(row.response) for row in rows)
    ours = _measure(MAPPA, spec)
    figures = [Figure(name=f"{setting}: real tokens", value=tokens, unit="tokens")]
    figures += _plain(setting, "MAPPA", ours)
    if not options.trl_python:
        return [*figures, *roofline(setting, [ours])]
    trl = (options.trl_python, str(TRL_SCRIPT))
    theirs: dict[str, tuple[Spec, Measured]] = {}
    for name, given in _of_trl(spec, options):
        theirs[name] = given, _measure(trl, given, without=OURS_ALONE)
        figures += _plain(setting, f"TRL, {name}", theirs[name][1])
    name = max(theirs, key=lambda each: theirs[each][1].tokens_per_second)
    fastest, first = theirs[name]
    again = [
        (_measure(MAPPA, spec), _measure(trl, fastest, without=OURS_ALONE))
        for _ in range(int(options.turns) - 1)
    ]
    turns = [(ours, first), *again]
    figures += [*_again(setting, name, again), *roofline(setting, [one for one, _ in turns])]
    return [*figures, *ratios(setting, turns)]


def _of_trl(spec: Spec, options: Options) -> Iterator[tuple[str, Spec]]:
    """List what TRL is measured at, with names."""
    sizes, dtypes = options.micro_batches.split(","), options.trl_dtypes.split(",")
    switches = options.trl_gradient_checkpointing.split(",")
    for size, dtype, switch in product(map(int, sizes), dtypes, switches):
        again = switch == "true"
        name = f"{dtype}, micro-batch {size}" + ", checkpointed" * again
        yield name, replace(spec, micro_batch=size, dtype=dtype, gradient_checkpointing=again)


def _again(setting: str, name: str, turns: Sequence[tuple[Measured, Measured]]) -> Iterator[Figure]:
    """Figures of the turns after the first."""
    for turn, (ours, theirs) in enumerate(turns, start=2):
        yield from _plain(setting, f"MAPPA, turn {turn}", ours)
        yield from _plain(setting, f"TRL, {name}, turn {turn}", theirs)


def _plain(setting: str, learner: str, measured: Measured) -> list[Figure]:
    gib = measured.extra_bytes / 2**30
    return [
        Figure(name=f"{setting}: {learner}", value=measured.tokens_per_second, unit="tokens/s"),
        Figure(
            name=f"{setting}: {learner}, by CPU time",
            value=measured.tokens_per_cpu_second,
            unit="tokens/CPU s",
        ),
        Figure(name=f"{setting}: {learner}, peak extra memory", value=gib, unit="GiB"),
    ]


def roofline(setting: str, turns: Sequence[Measured]) -> list[Figure]:
    """Compare updates' products with the machine's peaks, each in its turn, and say their share."""
    made = [one.products for one in turns if one.products is not None]
    inside, whole = sum(one.seconds for one in made), sum(one.work_seconds for one in made)
    least = sum(one.least_seconds for one in made)
    flops = sum(sum(one.flops.values()) for one in made)
    return [
        *_peaks(setting, made),
        Figure(name=f"{setting}: products", value=flops / inside / 1e9, unit="GFLOP/s"),
        Figure(name=f"{setting}: an update's time in products", value=inside / whole, unit="share"),
        Figure(name=f"{setting}: whole update over the peak", value=least / whole, unit="ratio"),
        aimed(f"{setting}: products over the peak", least / inside, "ratio", at_least=PEAK_AIM),
    ]


def _peaks(setting: str, made: Sequence[Products]) -> Iterator[Figure]:
    for dtype in made[0].flops:
        kept_up = mean(one.peaks[dtype].kept_up for one in made)
        best = max(one.peaks[dtype].best for one in made)
        name = f"{setting}: peak in {dtype}"
        yield Figure(name=name, value=kept_up / 1e9, unit="GFLOP/s")
        yield Figure(name=f"{name}, best moment", value=best / 1e9, unit="GFLOP/s")


def ratios(setting: str, turns: Sequence[tuple[Measured, Measured]]) -> list[Figure]:
    """Compare our updates with TRL's at its fastest, measured in turn: (ours, theirs) each time.

    Speeds are of all turns together; memory is the largest of each.
    """
    aim = SHARED_AIM if setting == "shared" else SPEED_AIM
    ours, theirs = zip(*turns, strict=True)
    (by_time, by_cpu_time), (their_time, their_cpu_time) = _speeds(ours), _speeds(theirs)
    speed, sturdy = by_time / their_time, by_cpu_time / their_cpu_time
    memory = max(one.extra_bytes for one in ours) / max(one.extra_bytes for one in theirs)
    return [
        Figure(name=f"{setting}: tokens/CPU s over that TRL's", value=sturdy, unit="ratio"),
        aimed(f"{setting}: tokens/s over TRL's best", speed, "ratio", at_least=aim),
        aimed(f"{setting}: peak extra memory over that TRL's", memory, "ratio", at_most=MEMORY_AIM),
    ]


def _speeds(measured: Sequence[Measured]) -> tuple[float, float]:
    """Tokens/s and tokens/CPU s of the same work, done several times."""
    return (
        harmonic_mean([one.tokens_per_second for one in measured]),
        harmonic_mean([one.tokens_per_cpu_second for one in measured]),
    )


def _measure(command: Sequence[str], spec: Spec, without: Sequence[str] = ()) -> Measured:
    env = {name: value for name, value in os.environ.items() if name not in without}
    if command is MAPPA:
        # As `mappa` itself starts.
        env = heap.TUNABLES | env
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(asdict(spec), file)
        file.flush()
        done = subprocess.run(
            [*command, file.name], env=env, capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LearnerError(f"{command[0]} could not measure an update: {last}")
    return TypeAdapter(Measured).validate_json(done.stdout.strip().splitlines()[-1])
