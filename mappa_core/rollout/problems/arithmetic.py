"""Bundled word problems with exact answers, in four levels, without end.

    level 1   one operation, numbers up to 80          addition, subtraction, multiplication
    level 2   larger numbers, and division             ... and division without remainder
    level 3   two operations                           two_step
    level 4   three operations                         three_step

A problem's key is its operation and its numbers. No key occurs twice over both sets, so a held-out
problem is never a training problem told with other names.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems import story_templates as stories
from mappa_core.rollout.problems.base import FixedProblems

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


def _addition(low: int, high: int) -> Callable[[Random], Sum]:
    def draw(random: Random) -> Sum:
        a, b = random.randint(low, high), random.randint(low, high)
        return Sum(quantities=(a, b), answer=a + b)

    return draw


def _subtraction(low: int, high: int) -> Callable[[Random], Sum]:
    def draw(random: Random) -> Sum:
        b, a = sorted(random.sample(range(low, high + 1), 2))
        return Sum(quantities=(a, b), answer=a - b)

    return draw


def _multiplication(few: int, many: int) -> Callable[[Random], Sum]:
    def draw(random: Random) -> Sum:
        a, b = random.randint(2, few), random.randint(5, many)
        return Sum(quantities=(a, b), answer=a * b)

    return draw


def _division(random: Random) -> Sum:
    b, answer = random.randint(2, 12), random.randint(5, 80)
    return Sum(quantities=(b * answer, b), answer=answer)


def _steps(
    level: int, task_type: str, templates: Sequence[str], signs: Sequence[tuple[int, ...]]
) -> Sequence[Kind]:
    return [
        Kind(level=level, task_type=task_type, draw=_chain(steps), templates=(template,))
        for template, steps in zip(templates, signs, strict=True)
    ]


def _chain(signs: tuple[int, ...]) -> Callable[[Random], Sum]:
    def draw(random: Random) -> Sum:
        start = random.randint(30, 90)
        changes = [random.randint(5, 25) for _ in signs]
        total = start
        for sign, change in zip(signs, changes, strict=True):
            total += sign * change
            if total < 0:
                return draw(random)
        return Sum(quantities=(start, *changes), answer=total)

    return draw


_TWO: Sequence[tuple[int, ...]] = ((1, -1), (-1, 1), (-1, -1))
_THREE: Sequence[tuple[int, ...]] = ((1, -1, 1), (-1, 1, -1))

KINDS: Sequence[Kind] = (
    Kind(level=1, task_type="addition", draw=_addition(5, 80), templates=stories.ADDITION),
    Kind(level=1, task_type="subtraction", draw=_subtraction(5, 80), templates=stories.SUBTRACTION),
    Kind(
        level=1,
        task_type="multiplication",
        draw=_multiplication(12, 80),
        templates=stories.MULTIPLICATION,
    ),
    Kind(level=2, task_type="addition", draw=_addition(100, 999), templates=stories.ADDITION),
    Kind(
        level=2,
        task_type="subtraction",
        draw=_subtraction(100, 999),
        templates=stories.SUBTRACTION,
    ),
    Kind(
        level=2,
        task_type="multiplication",
        draw=_multiplication(25, 99),
        templates=stories.MULTIPLICATION,
    ),
    Kind(level=2, task_type="division", draw=_division, templates=stories.DIVISION),
    *_steps(3, "two_step", stories.TWO_STEP, _TWO),
    *_steps(4, "three_step", stories.THREE_STEP, _THREE),
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
    name, other = random.sample(stories.NAMES, 2)
    letters = dict(zip(("a", "b", "c0", "d"), drawn.quantities, strict=False))
    statement = random.choice(kind.templates).format(
        n=name,
        m=other,
        o=random.choice(stories.THINGS),
        c=random.choice(stories.HOLDERS),
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
