"""Bundled word problems with exact answers, in four levels, without end.

    level 1   one operation, numbers up to 80          addition, subtraction, multiplication
    level 2   larger numbers, and division             ... and division without remainder
    level 3   two operations                           two_step
    level 4   three operations                         three_step

A problem's key is its operation and its numbers. No key occurs twice over both sets, so a held-out
problem is never a training problem told with other names.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, islice
from operator import mul
from random import Random

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems.base import FixedProblems
from mappa_core.rollout.problems.story_templates import HOLDERS, NAMES, TEMPLATES, THINGS

TRIES = 1000
"""Draws of a fresh key before the levels count as exhausted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """Quantities in reading order and what they come to."""

    quantities: tuple[int, ...]
    answer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of problem: how its numbers are drawn and how it is told."""

    level: int
    task_type: str
    draw: Callable[[Random], Sum]
    templates: Sequence[str]


def _addition(random: Random, low: int, high: int) -> Sum:
    a, b = random.randint(low, high), random.randint(low, high)
    return Sum(quantities=(a, b), answer=a + b)


def _subtraction(random: Random, low: int, high: int) -> Sum:
    b, a = sorted(random.sample(range(low, high + 1), 2))
    return Sum(quantities=(a, b), answer=a - b)


def _multiplication(random: Random, few: int, many: int) -> Sum:
    a, b = random.randint(2, few), random.randint(5, many)
    return Sum(quantities=(a, b), answer=a * b)


def _division(random: Random) -> Sum:
    b, answer = random.randint(2, 12), random.randint(5, 80)
    return Sum(quantities=(b * answer, b), answer=answer)


def _steps(random: Random, *signs: int) -> Sum:
    """Quantities added or taken away one after the other, never below zero."""
    start = random.randint(30, 90)
    changes = [random.randint(5, 25) for _ in signs]
    totals = list(accumulate(map(mul, signs, changes), initial=start))
    if min(totals) < 0:
        return _steps(random, *signs)
    return Sum(quantities=(start, *changes), answer=totals[-1])


def _kind(level: int, task_type: str, draw: Callable[..., Sum], *bounds: int) -> Kind:
    return Kind(
        level=level,
        task_type=task_type,
        draw=lambda random: draw(random, *bounds),
        templates=TEMPLATES[task_type],
    )


def _stepwise(level: int, task_type: str, *signs: tuple[int, ...]) -> Sequence[Kind]:
    """A kind for each of the task type's templates, whose words have these signs."""
    return [
        replace(_kind(level, task_type, _steps, *steps), templates=(template,))
        for template, steps in zip(TEMPLATES[task_type], signs, strict=True)
    ]


KINDS: Sequence[Kind] = (
    _kind(1, "addition", _addition, 5, 80),
    _kind(1, "subtraction", _subtraction, 5, 80),
    _kind(1, "multiplication", _multiplication, 12, 80),
    _kind(2, "addition", _addition, 100, 999),
    _kind(2, "subtraction", _subtraction, 100, 999),
    _kind(2, "multiplication", _multiplication, 25, 99),
    _kind(2, "division", _division),
    *_stepwise(3, "two_step", (1, -1), (-1, 1), (-1, -1)),
    *_stepwise(4, "three_step", (1, -1, 1), (-1, 1, -1)),
)


def open_problems(config: ProblemsConfig, workspace_mib: int | None) -> FixedProblems:  # noqa: ARG001
    """Draw both sets.

    Raises:
        ConfigError: A level or an operation asked for has no kind of problem, or all of them hold
            too few distinct problems.
    """
    kinds, size = _chosen(config), config.held_out_size + config.train_size
    problems = list(islice(_distinct(kinds, config.seed), size))
    if len(problems) < size:
        raise ConfigError(
            f"levels {list(config.levels)} hold about {len(problems)} distinct problems: lower "
            "problems.train_size or add a level"
        )
    return FixedProblems(problems[config.held_out_size :], problems[: config.held_out_size])


def _chosen(config: ProblemsConfig) -> list[Kind]:
    kinds = [
        kind
        for kind in KINDS
        if kind.level in config.levels
        and (not config.operations or kind.task_type in config.operations)
    ]
    levels = set(config.levels) - {kind.level for kind in kinds}
    operations = set(config.operations) - {kind.task_type for kind in kinds}
    if levels or operations:
        known = sorted({kind.task_type for kind in KINDS})
        raise ConfigError(
            f"problems.levels={list(config.levels)} with problems.operations="
            f"{list(config.operations)} leaves nothing for {_listed(levels | operations)}: "
            f"levels are 1 to 4, operations {', '.join(known)}"
        )
    return kinds


def _listed(things: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, things)))


def _distinct(kinds: Sequence[Kind], seed: int) -> Iterator[Problem]:
    """Problems in turn over the kinds, no key twice; ends when fresh keys run out."""
    random = Random(ids.derive_seed("arithmetic", seed))  # noqa: S311
    seen: set[tuple[str, frozenset[int]]] = set()
    for kind in cycle(kinds):
        for _ in range(TRIES):
            drawn = kind.draw(random)
            # As a set: 14 + 27 and 27 + 14 are one problem.
            key = (kind.task_type, frozenset(drawn.quantities))
            if key not in seen:
                break
        else:
            return
        seen.add(key)
        yield _told(kind, drawn, random)


def _told(kind: Kind, drawn: Sum, random: Random) -> Problem:
    name, other = random.sample(NAMES, 2)
    letters = dict(zip(("a", "b", "c0", "d"), drawn.quantities, strict=False))
    statement = random.choice(kind.templates).format(
        n=name,
        m=other,
        o=random.choice(THINGS),
        c=random.choice(HOLDERS),
        **letters,
    )
    return Problem(
        id=ids.problem_id(statement),
        dataset="arithmetic",
        task_type=kind.task_type,
        level=kind.level,
        statement=statement,
        answer=str(drawn.answer),
    )
