"""The experiment in made-up runs: their coach asked again, as it is in the last iteration.

It sees every change, which is hardest: an honest coach that cannot see one is exactly equivalent.
"""

from dataclasses import replace

import numpy as np

from mappa_core.audit.frame import Experiment, Factor, Floats, Ints
from mappa_core.audit.records import Change
from mappa_core.audit.stress.worlds import (
    AGENTS,
    StressWorld,
    Work,
    problem_factor,
    scores_of,
    type_names,
    work_of,
)

PADDING_TOKENS = 76
"""Of the words that an experiment pads with."""


def asked(world: StressWorld, rng: np.random.Generator, actions: int) -> Experiment:
    """One run of that world and the experiment on a sample of its actions.

    Args:
        world: The coach and its work.
        rng: Of work, moods and sample.
        actions: As in `mappa audit RUN --experiment`.
    """
    everything = work_of(world, rng)
    stored = scores_of(world, everything, rng)
    sample = _sample(everything, actions, rng)
    work = everything.take(sample)
    today = replace(work, iteration=np.full(len(sample), world.sizes.iterations))
    changed = _changed(today, type_names(world))
    times = len(changed)
    put = [name for _, _, names in changed for name in names]
    return Experiment(
        action=Factor(
            codes=np.tile(np.arange(len(sample)), times), names=tuple(map(str, sample.tolist()))
        ),
        problem=problem_factor(np.tile(work.problem, times)),
        task_type=Factor(codes=np.tile(work.task_type, times), names=type_names(world)),
        agent=Factor(codes=np.tile(work.agent, times), names=AGENTS),
        iteration=np.tile(work.iteration, times),
        success=np.tile(work.success, times),
        change=Factor.of([change for change, _, _ in changed for _ in sample]),
        put=Factor.of(put),
        unseen=np.zeros(len(put), dtype=bool),
        score=np.concatenate([scores_of(world, each, rng) for _, each, _ in changed]),
        stored=np.tile(stored[sample], times),
    )


def _sample(work: Work, actions: int, rng: np.random.Generator) -> Ints:
    """Random actions, spread over agents and task types in proportion."""
    cell = work.agent * (work.task_type.max() + 1) + work.task_type
    place: Floats = np.empty(len(cell))
    for code in np.unique(cell):
        rows = np.flatnonzero(cell == code)
        place[rows] = (rng.permutation(len(rows)) + rng.random()) / len(rows)
    return np.argsort(place)[:actions]


def _changed(work: Work, types: tuple[str, ...]) -> list[tuple[Change, Work, list[str]]]:
    """Each change with the work as the coach is shown it, and what was put in the place of what."""
    nothing = [""] * len(work.problem)
    found: list[tuple[Change, Work, list[str]]] = [
        ("as it was", work, nothing),
        ("again", work, nothing),
    ]
    for step in range(1, len(types)):
        told = (work.task_type + step) % len(types)
        called = [types[code] for code in told.tolist()]
        found.append(("task type", replace(work, task_type=told), called))
    other = (work.agent + 1) % len(AGENTS)
    named = [AGENTS[code] for code in other.tolist()]
    padded = replace(work, tokens=work.tokens + PADDING_TOKENS)
    return [
        *found,
        ("rubric order", work, nothing),
        ("agent name", replace(work, agent=other), named),
        ("padded", padded, nothing),
    ]
