"""Made-up coaches watched over a long run: the same stored actions scored again and again."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit.config import AuditConfig
from mappa_core.audit.frame import Floats, Ints
from mappa_core.audit.needed import anchors_for
from mappa_core.audit.statistics.anchor_drift import Rescored, known_scores
from mappa_core.audit.statistics.noise import noise
from mappa_core.audit.stress.worlds import AGENTS, StressWorld, Work, scores_of, type_names, work_of
from mappa_core.audit.watch.anchors import AnchorHistory
from mappa_core.audit.watch.drifting import DriftState, drift_state
from mappa_core.audit.watch.history import ScoreStream
from mappa_core.audit.watch.versions import ModelChange

ITERATIONS = 60
"""Of the watch, over which those of the world are stretched."""
SHIPPED = AuditConfig().anchors
NOISE_OF = 100
"""Actions of which a coach's noise is measured, or all of the first iteration."""
NO_STREAM = ScoreStream(
    iterations=(),
    rounds=(),
    played=(),
    actions=0,
    problems=frozenset(),
    task_types=frozenset(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTrial:
    """What was said of the coach in many watched runs of one world."""

    world: StressWorld
    runs: int
    changed: bool
    """Whether the coach scores the anchors otherwise at the end than at first."""
    alarms: int
    """Runs in which the coach was said to have drifted, with the default number of anchors."""
    wanted: int
    """Anchors that the audit says this coach's noise takes; `found` with so many."""
    found: int
    named: int
    """Runs in which the change of its model was named as the likely cause."""


def watch_trial(world: StressWorld, runs: int, seed: int = 0) -> WatchTrial:
    """Watch the coach of many runs of a world.

    Args:
        world: The coach and its work.
        runs: How many.
        seed: Of the runs.
    """
    seen = [watched(world, np.random.default_rng([seed, run])) for run in range(runs)]
    work = _anchors(world, np.random.default_rng([seed, 0]), SHIPPED)
    changed = bool((_extra(world, _at(work, world, ITERATIONS)) != _extra(world, work)).any())
    wanted = _wanted(world, np.random.default_rng([seed, 0]))
    again = [np.random.default_rng([seed, 1, run]) for run in range(runs if changed else 0)]
    return WatchTrial(
        world=world,
        runs=runs,
        changed=changed,
        alarms=sum(each.cause == "coach" for each in seen),
        wanted=wanted,
        found=sum(watched(world, rng, wanted).cause == "coach" for rng in again),
        named=sum(change.likely_cause for each in seen for change in each.changes),
    )


def _wanted(world: StressWorld, rng: np.random.Generator) -> int:
    """Anchors that the audit says this coach takes, by its noise; no fewer than the default."""
    work = _anchors(world, rng, NOISE_OF)
    found = noise(np.array([scores_of(world, work, rng) for _ in range(AuditConfig().repeats)]).T)
    deviation = 0.0 if found is None else found.within_deviation
    return max(anchors_for(len(type_names(world)), deviation), SHIPPED)


def watched(world: StressWorld, rng: np.random.Generator, anchors: int = SHIPPED) -> DriftState:
    """One run of a world, its coach watched by so many anchors and the default of repeats."""
    work = _anchors(world, rng, anchors)
    repeats = np.array([scores_of(world, work, rng) for _ in range(AuditConfig().repeats)]).T
    rounds = [
        scores_of(world, _at(work, world, iteration), rng) for iteration in range(1, ITERATIONS + 1)
    ]
    usable = (~np.isnan(repeats)).sum(axis=1) > 1
    known, variances = known_scores([row[~np.isnan(row)] for row in repeats[usable]])
    names = type_names(world)
    history = AnchorHistory(
        scores=Rescored(
            known=known,
            variances=variances,
            repeats=repeats[usable],
            rounds=tuple(scores[usable] for scores in rounds),
            task_types=tuple(names[code] for code in work.task_type[usable].tolist()),
        ),
        iterations=tuple(range(1, ITERATIONS + 1)),
        rubric_changes=(),
    )
    return drift_state(NO_STREAM, history, tuple(_changes(world)))


def _anchors(world: StressWorld, rng: np.random.Generator, count: int) -> Work:
    """Actions of the first iteration, which take turns over agents and task types."""
    work = work_of(world, rng)
    first = np.flatnonzero(work.iteration == work.iteration.min())
    cell = work.task_type[first] * len(AGENTS) + work.agent[first]
    place: Ints = np.empty(len(first), dtype=np.int64)
    for code in np.unique(cell):
        rows = np.flatnonzero(cell == code)
        place[rows] = rng.permutation(len(rows))
    return work.take(first[np.lexsort((cell, place))][:count])


def _at(work: Work, world: StressWorld, iteration: int) -> Work:
    """The work as it is scored in an iteration of the watch."""
    when = -(-iteration * world.sizes.iterations // ITERATIONS)
    return replace(work, iteration=np.full(len(work.iteration), when))


def _extra(world: StressWorld, work: Work) -> Floats:
    """(N,) points that the coach gives beyond the quality."""
    parts = [each(work) for each in (world.planted, world.mood) if each is not None]
    return np.sum(parts, axis=0) if parts else np.zeros(len(work.problem))


def _changes(world: StressWorld) -> Iterator[ModelChange]:
    """What the stored versions show."""
    if world.model_until is not None:
        first = world.model_until * ITERATIONS // world.sizes.iterations + 1
        yield ModelChange(iteration=first, before="first model", after="second model")
