"""`mappa bench estimators`: whether estimators give the gradients that they are said to give.

Each estimator, for both kinds of credit, at three sizes of batch, on toy teams whose exact gradient
g is known (`train/toy_teams.py`). Of the toy teams the one with the worst figure is printed:

    along        length of the mean estimate along g, less 1, its scale taken out
    across       length of what of it is orthogonal to g, over |g|; beside it what chance makes of 0
    as shipped   the same of what a learner is given, over its own length along g
    noise        variance of an estimate, over that of `reinforce`'s

    mappa bench estimators teams=debate episodes=100000
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from mappa_cli.benches import bench_options
from mappa_cli.benches.report import BenchReport, Figure
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.train.certificate import Size, Verdict, certify
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.estimators import ESTIMATORS
from mappa_core.train.toy_teams import CAUSES, LEFT_OUT, TEAMS

SIZES: tuple[Size, ...] = ((12, 4), (32, 2), (64, 8))
EPISODES, FEWEST_EPISODES = 300_000, 50_000
ORDER: tuple[str, ...] = tuple(ESTIMATORS)
DEFAULT = AlgorithmConfig().estimator
UNBIASED = ("reinforce", "reinforce++", "reinforce++-baseline", "rloo")
"""Of which it is said that they have none; the others are as published."""
CHANCE = 0.05
"""Of finding a bias in any of the figures where there is none (Bonferroni)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """One figure of one verdict, and how probable it is by chance."""

    verdict: Verdict
    value: float
    error: float
    chance: float


def bench_estimators(overrides: Sequence[str], _: Settings) -> BenchReport:
    """Compare every estimator with exact gradients.

    Raises:
        ConfigError: An override other than `teams=NAME,...` and `episodes=NUMBER`.
    """
    names, episodes = _options(overrides)
    verdicts = [
        verdict
        for size in SIZES
        for team in TEAMS
        if team.name in names
        for verdict in certify(team, size, ESTIMATORS.items(), total=episodes)
    ]
    left_out = [
        verdict
        for team in LEFT_OUT
        if team.name in names
        for verdict in certify(team, SIZES[0], [(DEFAULT, ESTIMATORS[DEFAULT])], total=episodes)
    ]
    return BenchReport(bench="estimators", figures=(*_figures(verdicts), *_left_out(left_out)))


def _options(overrides: Sequence[str]) -> tuple[tuple[str, ...], int]:
    known = [team.name for team in (*TEAMS, *LEFT_OUT)]
    given = bench_options("estimators", overrides, teams=",".join(known), episodes=str(EPISODES))
    names, episodes = given["teams"].split(","), given["episodes"]
    enough = episodes.isdecimal() and int(episodes) >= FEWEST_EPISODES
    if not enough or not set(names) <= set(known):
        raise ConfigError(
            f"bench estimators takes teams= some of {', '.join(known)}, and episodes= a number "
            f"of at least {FEWEST_EPISODES}"
        )
    return tuple(names), int(episodes)


def _figures(verdicts: Sequence[Verdict]) -> Iterator[Figure]:
    """The worst of each estimator, credit and size; then noise, and what was caused later."""
    tests = 2 * sum(verdict.estimator in UNBIASED for verdict in verdicts)

    def row(verdict: Verdict) -> tuple[int, float, Size]:
        return (ORDER.index(verdict.estimator), verdict.discount or 0.0, verdict.size)

    for _, group in groupby(sorted(verdicts, key=row), row):
        same = list(group)
        if same[0].unscaled.along is not None:
            yield _worst("along", map(_along, same), tests)
        yield _worst("across", map(_across, same), tests)
        yield _worst("as shipped, across", map(_shipped, same), None)
    yield from _noise(verdicts)
    for verdict in verdicts:
        if verdict.team == CAUSES.name and verdict.discount is None:
            value, error = verdict.first
            yield Figure(
                name=f"{_name(verdict)}: first advantage, where only the next score is raised",
                value=value,
                error=error,
                unit="A(1) - A(0)",
                aim="0",
                met=abs(value) <= 4 * error,
            )


def _along(verdict: Verdict) -> Test:
    found = verdict.unscaled
    return Test(
        verdict=verdict,
        value=found.along or 0.0,
        error=found.along_error,
        chance=found.p_along,
    )


def _across(verdict: Verdict) -> Test:
    found = verdict.unscaled
    return Test(
        verdict=verdict, value=found.across, error=found.across_error, chance=found.p_across
    )


def _shipped(verdict: Verdict) -> Test:
    found = verdict.shipped
    return Test(
        verdict=verdict, value=found.across, error=found.across_error, chance=found.p_across
    )


def _worst(what: str, found: Iterator[Test], tests: int | None) -> Figure:
    """The least probable one; there is an aim where no bias is claimed, among so many tests."""
    worst = min(found, key=lambda test: (test.chance, -abs(test.value) / test.error))
    verdict = worst.verdict
    claimed = tests is not None and verdict.estimator in UNBIASED
    return Figure(
        name=f"{_name(verdict)}: {what} ({verdict.team})",
        value=worst.value,
        error=worst.error,
        unit="of |g|",
        aim="0" if claimed else None,
        met=worst.chance > CHANCE / tests if claimed and tests else None,
    )


def _noise(verdicts: Sequence[Verdict]) -> Iterator[Figure]:
    """Variance over reinforce's, the mean over teams, at the first size."""
    plain = {_cell(v): v.unscaled.noise for v in verdicts if v.estimator == "reinforce"}
    ratios = defaultdict[str, list[float]](list)
    for verdict in verdicts:
        if verdict.size == SIZES[0]:
            ratios[_name(verdict)].append(verdict.unscaled.noise / plain[_cell(verdict)])
    for name, values in ratios.items():
        yield Figure(name=f"{name}: noise", value=sum(values) / len(values), unit="of reinforce's")


def _left_out(verdicts: Sequence[Verdict]) -> Iterator[Figure]:
    for verdict in verdicts:
        found = verdict.unscaled
        yield Figure(
            name=f"{_name(verdict)}: across, left out by what was written ({verdict.team})",
            value=found.across,
            error=found.across_error,
            unit="of |g|",
        )


def _cell(verdict: Verdict) -> tuple[str, float | None, Size]:
    return verdict.team, verdict.discount, verdict.size


def _name(verdict: Verdict) -> str:
    credit = "action" if verdict.discount is None else "return"
    return f"{verdict.estimator}, {credit}, {verdict.size[0]} x {verdict.size[1]}"
