"""Made-up runs by item-response models: nothing here is shared with the audit's own simulations.

a problem              has a difficulty from a skewed distribution of its type
an episode is right    by a two-parameter logistic model of a policy that may learn
a coach                puts the answer's worth into ordered grades (Samejima 1969), each agent's
                       work by cut points of its own, with logistic noise
or                     counts points on a list of twenty, each given with a chance (binomial)

No code is shared, but who wrote it had read the audit: it is no stranger's world.
"""

from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Factor, Floats, Frame, Ints

TEAM = ("planner", "writer")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedWorld:
    """A run; difficulties, abilities and worth are in logits."""

    problems: tuple[int, ...] = (40, 40)
    episodes: int = 4
    harder: tuple[float, ...] = (0.0, 0.6, 0.0)
    """By task type."""
    ability: float = 0.4
    learned: float = 0.0
    """Logits that the policy gains over the run."""
    discrimination: float = 1.3
    counts: bool = False
    """Whether the coach counts points, and does not grade."""
    iterations: int = 8


def graded(world: GradedWorld, rng: np.random.Generator, points: float = 0.0) -> Frame:
    """One run.

    Args:
        world: What is played.
        rng: Of everything.
        points: That the coach gives the second type more, before it puts worth into grades.
    """
    kind = np.repeat(np.arange(len(world.problems)), world.problems)
    hard = np.array(world.harder)[kind] + rng.gamma(2.0, 0.6, len(kind)) - 1.2
    when = rng.integers(1, world.iterations + 1, len(kind))
    problem = np.repeat(np.arange(len(kind)), world.episodes)
    able = world.ability + world.learned * when[problem] / world.iterations
    form = rng.normal(0, 0.5, len(problem))
    worth = able + form - hard[problem]
    right = rng.random(len(problem)) < _logistic(world.discrimination * worth)
    row = np.repeat(np.arange(len(problem)), len(TEAM))
    agent = np.tile(np.arange(len(TEAM)), len(problem))
    merit = worth[row] + 0.8 * (right[row] - 0.5) + rng.normal(0, 0.4, len(row))
    favoured = points * (kind[problem][row] == 1)
    put = _counted if world.counts else _graded
    return _frame(put(merit, agent, favoured, rng), kind, when, problem, right, row, rng)


def _graded(merit: Floats, agent: Ints, extra: Floats, rng: np.random.Generator) -> Floats:
    """Grades 0 to 10: the number of cut points, a point apart, below what is felt."""
    felt = 5.6 + 1.1 * merit + 0.5 * agent + extra + rng.logistic(0, 0.55, len(merit))
    return (felt[:, None] > np.arange(10) + 0.5).sum(axis=1).astype(float)


def _counted(merit: Floats, agent: Ints, extra: Floats, rng: np.random.Generator) -> Floats:
    """Twenty half points; what is extra is added to the count, and rounded by chance."""
    count = rng.binomial(20, _logistic(0.9 + 0.6 * merit + 0.2 * agent))
    more = np.floor(2 * extra + rng.random(len(merit)))
    return (count + more).clip(0, 20) / 2


def _logistic(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-logits))


def _frame(
    score: Floats,
    kind: Ints,
    when: Ints,
    problem: Ints,
    right: np.ndarray,
    row: Ints,
    rng: np.random.Generator,
) -> Frame:
    count, agent = len(row), np.tile(np.arange(len(TEAM)), len(problem))
    names = tuple(f"kind {code}" for code in range(int(kind.max()) + 1))
    return Frame(
        score=score,
        unparsed=np.zeros(count, dtype=bool),
        task_type=Factor(codes=kind[problem][row], names=names),
        agent=Factor(codes=agent, names=TEAM),
        problem=Factor(codes=problem[row], names=tuple(map(str, range(len(kind))))),
        episode=row.astype(np.int64),
        iteration=when[problem][row].astype(np.int64),
        turn=agent,
        level=np.ones(count, dtype=np.int64),
        tokens=rng.poisson(90, count) + 5,
        tool_used=agent == 1,
        tool_failed=(agent == 1) & (rng.random(count) < 0.1),
        success=right[row].astype(float),
        advantage=np.full(count, np.nan),
        weight=np.full(count, 1 / count),
        cut_off=np.zeros(count, dtype=bool),
    )
