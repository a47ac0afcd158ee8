"""How often is the audit itself wrong? Planted biases, found or not, counted.

Every rate comes with its exact binomial interval (Clopper & Pearson 1934).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from mappa_core.audit.config import AuditConfig
from mappa_core.audit.frame import Floats
from mappa_core.audit.statistics import drift
from mappa_core.audit.statistics.anchor_drift import (
    AnchorBets,
    Rescored,
    bet_on_anchors,
    held_still,
    known_scores,
)
from mappa_core.audit.statistics.counting import Promise, Rate, counted_rate
from mappa_core.audit.statistics.effects import Effect, bias_family, task_type_effects
from mappa_core.audit.statistics.observational import ALARMS
from mappa_core.audit.statistics.simulation import FAVOURED, World, simulate
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS

RUNS = 1_000


Check = Callable[[np.random.Generator], bool]


def self_test(runs: int = RUNS, seed: int = 0, margin: float = MARGIN_POINTS) -> tuple[Rate, ...]:
    """Measure the audit's false alarms and power by simulation.

    Args:
        runs: Simulated runs of each kind.
        seed: Of the simulation.
        margin: Of the verdicts.
    """
    return tuple(
        measured_rate(name, check, promise, runs, np.random.default_rng([seed, number]))
        for number, (name, check, promise) in enumerate(_checks(margin))
    )


def _checks(margin: float) -> Sequence[tuple[str, Check, Promise]]:
    plain = World()
    few = World(problems=10, actions=30)
    some = World(problems=30, actions=12)
    return (
        ("no bias, 100 problems: suspected", partial(any_alarm, plain, margin), "level"),
        ("no bias, 60 problems: suspected", partial(any_alarm, some, margin), "level"),
        ("no bias, 20 problems: suspected", partial(any_alarm, few, margin), "level"),
        (
            "+1, 600 actions a type: suspected",
            partial(_finds, replace(plain, planted="constant", points=1.0), margin, "any"),
            "power",
        ),
        (
            "+1.5 when right, -1.5 when wrong: suspected",
            partial(_finds, replace(plain, planted="cancelling", points=1.5), margin, "right"),
            "power",
        ),
        (
            "grows to +2 over the run: suspected",
            partial(_finds, replace(plain, planted="drift", points=2.0), margin, "all"),
            "power",
        ),
        ("no drift, 200 looks: false alarm", partial(_drifts, DriftWorld()), "level"),
        ("coach drifts by 1: found in 30", partial(_found_in_time, _COACH), "power"),
        (
            "coach kinder by 1 to one of two types: found in 30",
            partial(_found_in_time, _KIND),
            "power",
        ),
        ("the same: that type alone is named", partial(_names_the_type, _KIND), "power"),
        ("coach drifts by 1: attributed", partial(_attributed, _COACH, "coach"), "power"),
        ("rubric shifts by 1: attributed", partial(_attributed, _RUBRIC, "rubric"), "power"),
        ("policy gains 1: attributed", partial(_attributed, _POLICY, "policy"), "power"),
        (
            "easiest problems first: policy named",
            partial(_attributed, _CURRICULUM, "policy"),
            "level",
        ),
        ("coach drifts by 0.5: found in 30", partial(_found_in_time, _HALF), "power"),
        (
            f"coach kinder by 0.5 to one of two types, {_HALF_KIND.anchors} anchors: found in 30",
            partial(_found_in_time, _HALF_KIND),
            "power",
        ),
    )


def measured_rate(
    name: str, check: Check, promise: Promise, runs: int, rng: np.random.Generator
) -> Rate:
    """Run a check `runs` times; `promise` is `level` (at most 5 %) or `power` (at least 90 %)."""
    return counted_rate(name, sum(check(child) for child in rng.spawn(runs)), runs, promise)


def any_alarm(world: World, margin: float, rng: np.random.Generator) -> bool:
    """Whether the audit of one simulated run suspects the coach."""
    found = bias_family(simulate(world, rng), margin)
    return any(effect.judged.verdict in ALARMS for effect in found)


def _finds(world: World, margin: float, stratum: str, rng: np.random.Generator) -> bool:
    found = task_type_effects(simulate(world, rng), margin)
    return any(_right_call(effect, stratum) for effect in found)


def _right_call(effect: Effect, stratum: str) -> bool:
    return (
        effect.judged.verdict in ALARMS
        and stratum in ("any", effect.stratum)
        and effect.subject == FAVOURED
        and effect.estimate.value > 0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftWorld:
    """A run seen by the drift test."""

    iterations: int = 200
    start: int | None = None
    """0-based iteration from which something is different."""
    points: float = 0.0
    coach: bool = False
    """Whether the anchors move too, or only the policies' scores."""
    task_types: int = 2
    kinder_to: int | None = None
    """To how many of them the coach's drift is; None for all."""
    rubric: bool = False
    """Whether the rubric's hash changes at `start`."""
    anchors: int = AuditConfig().anchors
    repeats: int = AuditConfig().repeats
    deviation: float = 1.0
    """Of repeated scores of one action, in points."""
    problems: int = 12
    """Per iteration, in the stream."""
    easiest_first: bool = False
    """Whether problems never come back and each iteration's are harder than the last one's; else
    the same problems are played in every iteration."""
    spread: float = 1.2
    """Of problems' expected scores, in points."""
    visits: float = 0.9
    """Deviation of a problem's mean score over its visits, in points."""


_COACH = DriftWorld(start=40, iterations=71, points=1.0, coach=True)
_KIND = replace(_COACH, kinder_to=1)
_HALF = replace(_COACH, points=0.5)
_HALF_KIND = replace(_KIND, points=0.5, anchors=48)
_RUBRIC = replace(_COACH, rubric=True)
_POLICY = replace(_COACH, coach=False)
_CURRICULUM = DriftWorld(iterations=71, easiest_first=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One simulated run seen by the drift test."""

    anchors: AnchorBets
    stream: drift.Wealth
    still: bool
    """Whether the anchors are shown to have held still since the stream moved."""
    own: bool
    """Whether problems' own scores moved."""


def watch_drift(world: DriftWorld, rng: np.random.Generator) -> Watched:
    """Watch one simulated run."""
    shift = np.zeros(world.iterations)
    if world.start is not None:
        shift[world.start :] = world.points
    scores = _rescored(world, shift, rng)
    expected, played = _problems(world, rng)
    noise = rng.normal(0, world.visits, expected.shape)
    stream = list((expected + noise + shift[:, None]).clip(0, 10))
    streamed = drift.bet_on_stream(stream)
    since = streamed.onset
    return Watched(
        anchors=bet_on_anchors(scores),
        stream=streamed,
        still=since is not None and held_still(scores, since, scores.task_types),
        own=drift.bet_on_own_ranks(stream, played).alarmed,
    )


def _rescored(world: DriftWorld, shift: Floats, rng: np.random.Generator) -> Rescored:
    """What the anchors get, in whole points; they take turns over the task types."""
    kinds = np.arange(world.anchors) % world.task_types
    truth = rng.uniform(2, 8, world.anchors)
    repeats = truth[:, None] + rng.normal(0, world.deviation, (world.anchors, world.repeats))
    repeats = np.round(repeats).clip(0, 10)
    known, variances = known_scores(list(repeats))
    favoured = world.task_types if world.kinder_to is None else world.kinder_to
    moved = np.outer(shift, kinds < favoured) * world.coach
    noise = rng.normal(0, world.deviation, moved.shape)
    return Rescored(
        known=known,
        variances=variances,
        repeats=repeats,
        rounds=tuple(np.round(truth + noise + moved).clip(0, 10)),
        task_types=tuple(map(str, kinds.tolist())),
    )


def _problems(world: DriftWorld, rng: np.random.Generator) -> tuple[Floats, list[list[str]]]:
    """(I, P) expected scores of the problems of each iteration, and which they are."""
    shape = (world.iterations, world.problems)
    if world.easiest_first:
        levels = -np.sort(-rng.normal(5, world.spread, shape[0] * shape[1])).reshape(shape)
        return levels, [[f"{row} {place}" for place in range(shape[1])] for row in range(shape[0])]
    levels = np.tile(rng.normal(5, world.spread, world.problems), (world.iterations, 1))
    return levels, [[str(place) for place in range(shape[1])]] * shape[0]


def _drifts(world: DriftWorld, rng: np.random.Generator) -> bool:
    seen = watch_drift(world, rng)
    return seen.anchors.together.alarmed or seen.stream.alarmed


def _found_in_time(world: DriftWorld, rng: np.random.Generator) -> bool:
    alarm = watch_drift(world, rng).anchors.together.alarm
    return alarm is not None and world.start is not None and 0 <= alarm - world.start < 30


def _names_the_type(world: DriftWorld, rng: np.random.Generator) -> bool:
    return watch_drift(world, rng).anchors.named == ("0",)


def _attributed(world: DriftWorld, cause: drift.Cause, rng: np.random.Generator) -> bool:
    return named(world, watch_drift(world, rng)) == cause


def named(world: DriftWorld, seen: Watched) -> drift.Cause:
    """Who is said to have changed."""
    changes = [world.start] if world.rubric and world.start is not None else []
    bets = seen.anchors.together
    return drift.attribute(bets, seen.stream, changes, still=seen.still, own=seen.own)
