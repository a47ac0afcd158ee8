"""`mappa bench quickstart`: what the quickstart reaches, seed by seed, and what is kept of it.

    mappa bench quickstart seeds=1,2,3 file=docs/quickstart.json
    mappa bench quickstart preset=quickstart_llm_coach file=docs/quickstart_llm_coach.json

A finished run of the preset with a seed is taken as it is, and its code is said; for a seed that
has none, one is played, and its command timed. `homes=A,B` looks for finished runs in other homes
than MAPPA_HOME, and keys with a dot are the preset's own (`coach.model=...`). README's figures and
picture are made from the files by docs/picture.py.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from mappa_cli.benches.quickstart_coach import ModelCoachResult, coach_figures, model_coach
from mappa_cli.benches.report import BenchReport, Figure, machine
from mappa_cli.printing.runs import IterationLine, iteration_lines
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.core.errors import ConfigError, OutsideError
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.settings import Settings
from mappa_core.evaluate.comparison import Comparison, compare
from mappa_core.evaluate.report import successes_of
from mappa_core.store.opening import opened_store
from mappa_core.store.store import Store

PRESET = "quickstart"
NEWEST = 1000
"""Runs of a home that are looked at."""
GAINS = {PRESET: 40, "quickstart_llm_coach": 25}
"""Points on held-out problems that each seed is to gain."""
MOST_MINUTES = 20
"""Of a run that a language model coaches, and of its whole command where that was timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """One finished run of the preset."""

    seed: int
    run: str
    """Its name."""
    code_version: str
    minutes: float
    """From its row in the store to its end, base and trained team's measurement included; servers'
    start and a coach's exam come before."""
    command_minutes: float | None = None
    """Of the whole command: start, the exam where the coach had not sat it, run and end. None where
    the run was taken, whose command nobody has timed."""
    held_out: Comparison
    iterations: tuple[IterationLine, ...]
    coach: ModelCoachResult | None = None
    """None where rules scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedResult:
    """The preset's runs of several seeds, as they are stored."""

    machine: str
    preset: str = PRESET
    """Its name, and what was set otherwise."""
    settings: Mapping[str, object] | None = None
    """What it sets, as it was played; None in files of earlier versions."""
    results: tuple[SeedResult, ...]
    """By seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    preset: str = PRESET
    own: tuple[str, ...] = ()
    """What is set otherwise than in the preset."""
    seeds: tuple[int, ...] = (1, 2, 3)
    homes: tuple[Path, ...] = ()
    file: Path | None = None


def bench_quickstart(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Take or play one run of the preset for each seed, and store what they reached.

    Raises:
        ConfigError: An override other than `preset=NAME`, `seeds=1,2,3`, `homes=DIR,DIR`,
            `file=FILE` or a key of the preset; or what `load_config` says of the preset.
        OutsideError: A run failed.
    """
    options = _options(overrides)
    found = RepeatedResult(
        machine=machine(),
        preset=" ".join((options.preset, *options.own)),
        settings=settings_of(load_config(Path(options.preset), options.own)),
        results=tuple(_result(seed, options, settings) for seed in options.seeds),
    )
    if options.file is not None:
        text = TypeAdapter(RepeatedResult).dump_json(found, indent=1).decode()
        options.file.write_text(f"{text}\n")
    return BenchReport(bench="quickstart", figures=tuple(quickstart_figures(found)))


def settings_of(config: TrainConfig) -> Mapping[str, object]:
    """List what a configuration sets other than by default, but for the seed."""
    return config.model_dump(mode="json", exclude_defaults=True, exclude={"seed"})


def read_result(file: Path) -> RepeatedResult:
    """Read what `file=` stored.

    Raises:
        ConfigError: It is not there, or something else.
    """
    try:
        return TypeAdapter(RepeatedResult).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{file} holds no result of bench quickstart: {error}") from error


def finished(store: Store, wanted: TrainConfig) -> SeedResult | None:
    """Find the newest run that completed with exactly this configuration; None without one."""
    for run in store.runs.list_runs(NEWEST):
        if run.status is RunStatus.COMPLETED and run.measures is None and _is(run, wanted):
            return _read(store, run, wanted)
    return None


def _is(run: Run, wanted: TrainConfig) -> bool:
    # Another preset's run, or one that an earlier version could be asked for, may not even load.
    if run.seed != wanted.seed or run.config.get("name") != wanted.name:
        return False
    return not TrainConfig.model_validate(run.config).same_experiment(wanted)


def _read(store: Store, run: Run, config: TrainConfig) -> SeedResult:
    before, after = (
        successes_of(store.episodes.list_episodes(run.id, "held_out", step))
        for step in (0, config.rollout.iterations)
    )
    drawn = {"resamples": config.evaluation.bootstrap, "seed": config.seed}
    if run.ended_at is None:
        raise OutsideError(f"run {run.name} completed and the store does not say when")
    return SeedResult(
        coach=model_coach(store, run, config),
        seed=run.seed,
        run=run.name,
        code_version=run.code_version,
        minutes=round((run.ended_at - run.started_at).total_seconds() / 60, 1),
        held_out=compare(before, after, **drawn),
        iterations=iteration_lines(store.figures.list_iteration_figures(run.id)),
    )


def _result(seed: int, options: _Options, settings: Settings) -> SeedResult:
    typed = ("--config", options.preset, *options.own, f"seed={seed}")
    wanted = load_config(Path(options.preset), typed[2:])
    if taken := _look(wanted, options.homes, settings):
        sys.stderr.write(f"seed {seed}: {taken.run}, of code {taken.code_version}, is taken\n")
        return taken
    minutes = _play(("train", *typed), settings)
    if (played := _look(wanted, (), settings)) is None:
        raise OutsideError(f"the run of seed {seed} ended and {settings.home} does not have it")
    return replace(played, command_minutes=round(minutes, 1))


def _look(wanted: TrainConfig, homes: Sequence[Path], settings: Settings) -> SeedResult | None:
    places = [Settings.model_validate({"MAPPA_HOME": home}) for home in homes] or [settings]
    for place in places:
        with opened_store(place) as store:
            found = finished(store, wanted)
        if found is not None:
            return found
    return None


def _play(typed: Sequence[str], settings: Settings) -> float:
    """Train as a person would, in a process of its own; its progress is shown on stderr.

    Returns the minutes that the command took.
    """
    command = [sys.executable, "-c", "from mappa_cli.start import command; command()", *typed]
    where = os.environ | {"MAPPA_HOME": str(settings.home)}
    started = time.monotonic()
    code = subprocess.run(command, stdout=sys.stderr, env=where, check=False).returncode
    if code:
        raise OutsideError(f"`mappa {' '.join(typed)}` ended with {code}: see what it said above")
    return (time.monotonic() - started) / 60


def _options(overrides: Sequence[str]) -> _Options:
    given = dict[str, str]()
    own = tuple(override for override in overrides if "." in override.partition("=")[0])
    for override in overrides:
        key, _, value = override.partition("=")
        if override not in own:
            given[key] = value
    if not {*given} <= {"preset", "seeds", "homes", "file"} or not all(given.values()):
        raise ConfigError(
            "bench quickstart takes preset=NAME, seeds=1,2,3, homes=DIR,DIR, file=FILE and keys "
            "of the preset (coach.model=...)"
        )
    seeds = given.get("seeds", "1,2,3").split(",")
    if not all(seed.isdecimal() for seed in seeds):
        raise ConfigError(f"seeds={given['seeds']} are no numbers: write them as seeds=1,2,3")
    homes = tuple(Path(home) for home in given["homes"].split(",")) if "homes" in given else ()
    if lacking := [str(home) for home in homes if not home.is_dir()]:
        raise ConfigError(f"homes: there is no folder {' or '.join(lacking)}")
    file = Path(given["file"]) if "file" in given else None
    if file is not None and not file.parent.is_dir():
        raise ConfigError(f"file={file}: there is no folder {file.parent}, make it first")
    return _Options(
        preset=given.get("preset", PRESET),
        own=own,
        seeds=tuple(sorted(map(int, {*seeds}))),
        homes=homes,
        file=file,
    )


def quickstart_figures(found: RepeatedResult) -> Iterator[Figure]:
    """List what each seed reached, beside what it is to reach."""
    least = GAINS.get(found.preset)
    for one in found.results:
        compared, of = one.held_out, f"seed {one.seed}"
        yield Figure(name=f"{of}: right before", value=100 * compared.before, unit="%")
        yield Figure(name=f"{of}: right after", value=100 * compared.after, unit="%")
        gain = 100 * compared.difference
        yield Figure(
            name=f"{of}: gain",
            value=gain,
            unit="points",
            aim=None if least is None else f">= {least}",
            met=None if least is None else gain >= least,
        )
        name = f"{of}: lower end of its 95 % interval"
        yield Figure(
            name=name, value=100 * compared.low, unit="points", aim="> 0", met=compared.low > 0
        )
        timed = {"a run, after its start": one.minutes, "the whole command": one.command_minutes}
        for what, minutes in timed.items():
            if minutes is not None:
                yield Figure(
                    name=f"{of}: {what}",
                    value=minutes,
                    unit="min",
                    aim=f"<= {MOST_MINUTES}" if one.coach else None,
                    met=minutes <= MOST_MINUTES if one.coach else None,
                )
        if one.coach is not None:
            yield from coach_figures(one.coach, of, one.minutes)
