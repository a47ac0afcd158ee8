"""Experiments on the work of a partial-credit coach, written before its author read the audit.

a problem              a mean of its type and a heavy-tailed difficulty (Student, 4 degrees);
                       1 to 6 episodes
an episode is right    by a three-parameter logistic model, with guessing
a coach                chooses a whole point by random utility (generalized partial credit), anew
                       each time it is asked; it prefers some points, and one agent's work gets
                       nearly one score while the other's is spread over the whole scale
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Experiment, Factor, Floats, Ints

TEAM = ("ann", "bob")
Told = Callable[[Ints, Ints, Floats], Floats]
"""Points more, by the type that the coach is told, the agent and the success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditWorld:
    """A run; difficulties are in logits, bases in points."""

    problems: tuple[int, ...]
    harder: tuple[float, ...] = (0.0, 0.8, -0.5, 0.3, 1.2)
    base: tuple[float, float] = (7.0, 5.0)
    slope: tuple[float, float] = (0.35, 1.6)
    """Points of each agent's work for a logit of merit."""
    sharp: tuple[float, float] = (3.0, 0.8)
    favourites: tuple[int, ...] = (0, 5, 8, 10)
    actions: int = 200


def experiment(world: CreditWorld, favour: Told, rng: np.random.Generator) -> Experiment:
    """One run, and the coach asked again about a sample of its actions."""
    kind = np.repeat(np.arange(len(world.problems)), world.problems)
    hard = np.array(world.harder)[kind] + 0.7 * rng.standard_t(4, len(kind))
    problem = np.repeat(np.arange(len(kind)), rng.integers(1, 7, len(kind)))
    worth = 0.3 + 0.8 * rng.random(len(problem)) - hard[problem] + rng.normal(0, 0.6, len(problem))
    right = rng.random(len(problem)) < 0.12 + 0.88 / (1 + np.exp(-1.4 * worth))
    row = rng.permutation(2 * len(problem))[: world.actions]
    agent, row = row % 2, row // 2
    merit = worth[row] + 0.9 * (right[row] - 0.5) + rng.normal(0, 0.7, len(row))
    felt = np.array(world.base)[agent] + np.array(world.slope)[agent] * merit
    own, success = kind[problem[row]], right[row].astype(float)

    def given(told: Ints) -> Floats:
        points = np.arange(11)
        away = points - (felt + favour(told, agent, success))[:, None]
        drawn = 0.6 * np.isin(points, world.favourites) + rng.gumbel(size=away.shape)
        chosen = drawn - 0.5 * np.array(world.sharp)[agent][:, None] * away**2
        return chosen.argmax(axis=1).astype(float)

    types, count = tuple(f"type {code}" for code in range(len(world.problems))), len(row)
    asked: list[tuple[str, Ints, list[str]]] = [
        (change, own, [put[one] if put else "" for one in agent.tolist()])
        for change, put in _PLAIN.items()
    ]
    for step in range(1, len(types)):
        told = (own + step) % len(types)
        asked.append(("task type", told, [types[code] for code in told.tolist()]))
    times = len(asked)
    return Experiment(
        action=Factor(codes=np.tile(np.arange(count), times), names=_numbered(count)),
        problem=Factor(codes=np.tile(problem[row], times), names=_numbered(len(kind))),
        task_type=Factor(codes=np.tile(own, times), names=types),
        agent=Factor(codes=np.tile(agent, times), names=TEAM),
        iteration=np.tile(1 + np.arange(count) % 10, times),
        success=np.tile(success, times),
        change=Factor.of([change for change, _, _ in asked for _ in range(count)]),
        put=Factor.of([word for _, _, words in asked for word in words]),
        unseen=np.zeros(count * times, dtype=bool),
        score=np.concatenate([given(told) for _, told, _ in asked]),
        stored=np.tile(given(own), times),
    )


_PLAIN: dict[str, tuple[str, ...]] = {
    "as it was": (),
    "again": (),
    "rubric order": (),
    "padded": (),
    "agent name": TEAM[::-1],
}


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))
