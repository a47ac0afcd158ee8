"""`mappa bench audit-worlds`: how often the audit is wrong in worlds that it did not make.

    by=experiment   honest coaches called biased (at most 5 %), and found once they give a type one
                    point more (at least 90 %); planted biases called biased (at least 90 %)
    by=regression   honest coaches called biased (at most 5 %) and suspected; planted biases called
                    biased or suspected, and never equivalent
    by=drift        the coach watched over 60 iterations: coaches that do not change said to have
                    drifted (at most 5 %), those that do (with the anchors that `mappa audit` says
                    their noise takes, at least 90 %), and a change of their model that is stored
                    named as the likely cause (at least 90 %)
    by=divergence   the alarm that scores rise where success does not, in 40 iterations of worlds of
                    its own: of honest coaches (at most 5 %), and of those that give 2 points more
                    from half way on while success falls (at least 90 %)
    by=onset        the set of iterations at which a bias of 1.5 points may have set in, of 8, in
                    worlds of its own: how often it holds the right one (93 to 97 %, and two
                    standard errors of as many runs)

The first two also say how far each rate that is printed beside a verdict is from the measured one
(at most 3 points beyond two standard errors), and how often it is said that it cannot be known. All
without `by`; worlds are independent, so commands with `only` can share the cores.
`runs=100` is how many runs of each world, `actions=200` what an experiment
asks about, `only=WORDS` the worlds whose name has these words.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mappa_cli.benches import bench_options
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.audit.stress.calibrating import (
    CalibrationTrial,
    calibration_trial,
    calibration_worlds,
)
from mappa_core.audit.stress.catalogue import biased_worlds, honest_worlds
from mappa_core.audit.stress.dating import DatingTrial, dating_trial, dating_worlds
from mappa_core.audit.stress.trial import (
    PLANTED_POINTS,
    Experimented,
    Printed,
    Trial,
    experimented,
    tried,
)
from mappa_core.audit.stress.watching import SHIPPED, WatchTrial, watch_trial
from mappa_core.audit.stress.worlds import StressWorld
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

RUNS = "100"
ACTIONS = "200"
MOST_FALSE = 0.05
MOST_EQUIVALENT = 0.05
FEWEST_FOUND = 0.9
MOST_OFF = 0.03
"""Between a printed rate and the measured one."""
COVERAGE, LEAST_COVERED, MOST_COVERED = 0.95, 0.93, 0.97
WAYS = ("experiment", "regression", "drift", "divergence", "onset")


def bench_audit_worlds(overrides: Sequence[str], _settings: Settings) -> BenchReport:
    """Audit every world of the catalogue many times.

    Raises:
        ConfigError: An override that is not one of those above, or no such world.
    """
    asked = _options(overrides)
    figures = [figure for way in asked.ways for figure in _counted(way, asked)]
    if not figures:
        raise ConfigError(f"no world has {asked.only!r} in its name")
    return BenchReport(bench="audit-worlds", figures=tuple(figures))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    runs: int
    actions: int
    only: str
    ways: tuple[str, ...]


def _options(overrides: Sequence[str]) -> _Asked:
    given = bench_options("audit-worlds", overrides, runs=RUNS, actions=ACTIONS, only="", by="")
    runs, actions, only, by = given.values()
    numbers = all(each.isdecimal() and int(each) for each in (runs, actions))
    if not numbers or by not in ("", *WAYS):
        raise ConfigError(
            "bench audit-worlds takes runs=NUMBER and actions=NUMBER, at least 1, only=WORDS and "
            f"by={' or by='.join(WAYS)}"
        )
    return _Asked(runs=int(runs), actions=int(actions), only=only, ways=(by,) if by else WAYS)


def _counted(way: str, asked: _Asked) -> Iterator[Figure]:
    """The figures of one way, of each of its worlds that has the words in its name."""
    if way == "divergence":
        for policy in calibration_worlds():
            if asked.only in policy.name:
                yield from _of_calibration(calibration_trial(policy, asked.runs))
        return
    for world in dating_worlds() if way == "onset" else (*honest_worlds(), *biased_worlds()):
        if asked.only in world.name:
            yield from _in_world(way, world, asked)


def _in_world(way: str, world: StressWorld, asked: _Asked) -> Iterator[Figure]:
    match way:
        case "experiment":
            return _of_experiment(experimented(world, asked.runs, asked.actions))
        case "regression":
            return _of_regression(tried(world, asked.runs))
        case "drift":
            return _of_watch(watch_trial(world, asked.runs))
        case _:
            return _of_dating(dating_trial(world, asked.runs))


def _of_experiment(found: Experimented) -> Iterator[Figure]:
    name, biased = f"{found.world.name}: the experiment says biased", found.share("biased")
    if not found.world.honest:
        yield _rate(name, biased, found.runs, at_least=FEWEST_FOUND)
        return
    yield _rate(f"honest, {name}", biased, found.runs, at_most=MOST_FALSE)
    more = f"... with {PLANTED_POINTS:g} more for a type: the experiment says biased"
    yield _rate(more, found.found / found.runs, found.runs, at_least=FEWEST_FOUND)
    for printed in found.printed:
        yield from _of_printed(printed)


def _of_regression(trial: Trial) -> Iterator[Figure]:
    name, alarmed = trial.world.name, trial.share("biased", "suspected")
    if not trial.world.honest:
        yield _rate(f"{name}: biased or suspected", alarmed, trial.runs)
        share = trial.share("equivalent")
        yield _rate(f"{name}: equivalent", share, trial.runs, at_most=MOST_EQUIVALENT)
        return
    biased = trial.share("biased")
    yield _rate(f"honest, {name}: biased", biased, trial.runs, at_most=MOST_FALSE)
    yield _rate(f"honest, {name}: suspected", alarmed, trial.runs)
    yield _rate("... with 0.5 more: found", trial.found / trial.runs, trial.runs)
    for printed in trial.printed:
        yield from _of_printed(printed)


def _of_printed(printed: Printed) -> Iterator[Figure]:
    """A printed rate and how far it is from the measured one, or how often it was not told."""
    not_told = 1 - len(printed.told) / printed.runs
    if not_told:
        name = f"... not told, as it cannot be known: {printed.name}"
        yield Figure(name=name, value=not_told, unit="of audits")
    if not printed.told:
        return
    name = f"... measured {printed.measured:.3f}, printed: {printed.name}"
    yield Figure(name=name, value=printed.mean, unit="of runs")
    off, beyond = abs(printed.mean - printed.measured), 2 * printed.error
    yield Figure(
        name="... off the measured rate by",
        value=off,
        unit="of runs",
        aim=f"<= {MOST_OFF:g} and two errors",
        met=off <= MOST_OFF + beyond,
        error=printed.error,
    )


def _of_watch(trial: WatchTrial) -> Iterator[Figure]:
    name, alarmed = trial.world.name, trial.alarms / trial.runs
    if not trial.changed:
        yield _rate(f"{name}: the coach has drifted", alarmed, trial.runs, at_most=MOST_FALSE)
        return
    enough = FEWEST_FOUND if trial.wanted <= SHIPPED else None
    yield _rate(f"{name}: the coach has drifted", alarmed, trial.runs, at_least=enough)
    more = f"... with {trial.wanted} anchors, which its noise takes: the coach has drifted"
    yield _rate(more, trial.found / trial.runs, trial.runs, at_least=FEWEST_FOUND)
    if trial.world.model_until is not None:
        share = trial.named / trial.runs
        yield _rate("... its change of model is named", share, trial.runs, at_least=FEWEST_FOUND)


def _of_calibration(trial: CalibrationTrial) -> Iterator[Figure]:
    world, alarmed = trial.world, len(trial.alarms) / trial.runs
    first, last = trial.success
    name = f"{world.name} ({first:.0%} right at first, {last:.0%} at last): divergence"
    if not world.gain:
        # What records cannot tell has no aim.
        yield _rate(name, alarmed, trial.runs, at_most=None if world.hurdle else MOST_FALSE)
        return
    falls = world.skill[1] < world.skill[0]
    yield _rate(name, alarmed, trial.runs, at_least=FEWEST_FOUND if falls else None)
    if trial.delay is not None:
        yield Figure(name="... found after", value=trial.delay, unit="iterations")


def _of_dating(trial: DatingTrial) -> Iterator[Figure]:
    share, beyond = trial.held / trial.runs, 2 * math.sqrt(COVERAGE * (1 - COVERAGE) / trial.runs)
    yield replace(
        _rate(f"{trial.world.name}: the set of onsets holds the right one", share, trial.runs),
        aim=f"{LEAST_COVERED:g} to {MOST_COVERED:g} and two errors",
        met=LEAST_COVERED - beyond <= share <= MOST_COVERED + beyond,
    )
    yield Figure(name="... iterations in a set, of 8", value=trial.width, unit="iterations")


def _rate(
    name: str,
    share: float,
    runs: int,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> Figure:
    """A share of runs with its Monte-Carlo error."""
    error = math.sqrt(share * (1 - share) / runs)
    if at_least is None and at_most is None:
        return Figure(name=name, value=share, unit="of runs", error=error)
    return replace(aimed(name, share, "of runs", at_least=at_least, at_most=at_most), error=error)
