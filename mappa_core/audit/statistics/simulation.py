"""Made-up runs with a bias whose size is known, to find out what the audit can see.

    skill of a problem     z ~ N(type's mean, 0.6^2)
    an episode is right    with probability Phi(z)
    score                  5.5 + 0.8 z + outcome - Phi(z) + bias + problem's own + noise,
                           in half points, within [0, 10]

The types differ in difficulty, so that right and wrong work of the harder one is worse without any
bias.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy import special

from mappa_core.audit.frame import Factor, Floats, Frame, Ints

Planted: TypeAlias = Literal["none", "constant", "drift", "cancelling"]
FAVOURED = "regression"
OTHER = "classification"
BASE_POINTS = 5.5
OUTCOME_POINTS = 1.0
SKILL_POINTS, SKILL_DEVIATION = 0.8, 0.6
SKILLS = (-0.1, 0.3)
"""Means of the other and of the favoured type: some 47 and 60 % right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a simulated run looks like."""

    planted: Planted = "none"
    points: float = 0.0
    """The bias in favour of `FAVOURED`; a drift grows to it, a cancelling one is + on right
    episodes and - on wrong ones."""
    problems: int = 50
    """Of each type."""
    actions: int = 12
    """Of each problem; an episode has one of each agent."""
    iterations: int = 10
    deviation: float = 1.5
    """Of the scores of equal work, in points."""
    correlation: float = 0.05
    """Intraclass correlation: the problem's share of that variance, in [0, 1)."""
    agents: tuple[str, ...] = ("solver", "executor", "verifier")


def simulate(world: World, rng: np.random.Generator) -> Frame:
    """One run: 2 x problems x actions rows."""
    problem = np.repeat(np.arange(2 * world.problems), world.actions)
    favoured = (problem % 2 == 1).astype(np.int64)
    count = len(problem)
    iteration = 1 + (problem // 2) * world.iterations // world.problems
    place = np.arange(count) % world.actions
    agent = place % len(world.agents)
    episode = problem * world.actions + place // len(world.agents)
    skill = np.array(SKILLS)[np.arange(2 * world.problems) % 2]
    skill = (skill + rng.normal(0, SKILL_DEVIATION, 2 * world.problems))[problem]
    success = (rng.random(2 * world.problems * world.actions)[episode] < special.ndtr(skill)) * 1.0
    work = SKILL_POINTS * skill + OUTCOME_POINTS * (success - special.ndtr(skill))
    return Frame(
        score=_scores(world, rng, problem, work + _bias(world, favoured, success, iteration)),
        unparsed=np.zeros(count, dtype=bool),
        task_type=Factor(codes=favoured, names=(OTHER, FAVOURED)),
        agent=Factor(codes=agent, names=world.agents),
        problem=Factor(codes=problem, names=tuple(map(str, range(2 * world.problems)))),
        episode=episode,
        iteration=iteration,
        turn=agent,
        level=np.ones(count, dtype=np.int64),
        tokens=rng.integers(20, 200, count),
        tool_used=agent == 1,
        tool_failed=(agent == 1) & (rng.random(count) < 0.2),
        success=success,
        advantage=np.full(count, np.nan),
        weight=np.zeros(count),
        cut_off=np.zeros(count, dtype=bool),
    )


def _bias(world: World, favoured: Ints, success: Floats, iteration: Ints) -> Floats:
    size = {
        "none": np.zeros(len(success)),
        "constant": np.ones(len(success)),
        "drift": (iteration - 1) / max(world.iterations - 1, 1),
        "cancelling": 2 * success - 1,
    }[world.planted]
    return world.points * favoured * size


def _scores(world: World, rng: np.random.Generator, problem: Ints, work: Floats) -> Floats:
    own = rng.normal(0, np.sqrt(world.correlation), 2 * world.problems)[problem]
    noise = rng.normal(0, np.sqrt(1 - world.correlation), len(problem))
    points = BASE_POINTS + work + world.deviation * (own + noise)
    return (np.round(2 * points) / 2).clip(0, 10)
