"""Made-up runs in which latent quality drives both score and outcome; apart from the audit's own.

    quality of work    type's ease + problem's ease + episode's + action's own, in points
    outcome            right with probability sigmoid(2 (ease + episode's part - hurdle))
    score              5 + quality + what is planted + mood + noise, in whole points, many on
                       0, 5, 7, 10

An honest coach scores quality by one rule for all types. Nothing here is used by the verdicts or by
the rates printed beside them: a world can be hard on both.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np

from mappa_core.audit.frame import Factor, Floats, Frame, Ints, Mask

HEAPS = np.array([0.0, 5.0, 7.0, 10.0])
AGENTS = ("analyst", "coder", "checker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What was done in one made-up run; (N,) each."""

    task_type: Ints
    agent: Ints
    problem: Ints
    episode: Ints
    iteration: Ints
    tokens: Ints
    success: Floats
    quality: Floats
    """In points around 0."""

    def take(self, rows: Ints) -> "Work":
        """Some of the rows."""
        return Work(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


Planted: TypeAlias = Callable[[Work], Floats]
"""(N,) points that the coach gives too much."""
Lost: TypeAlias = Callable[[Work, Floats, np.random.Generator], Mask]
"""(N,) which scores are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much there is of everything."""

    problems: tuple[int, ...] = (60, 60)
    """Of each task type."""
    episodes: tuple[int, int] = (3, 6)
    """Of a problem: the fewest and the most; problems are of unequal size."""
    iterations: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ease:
    """How good the work is."""

    types: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Mean quality of each task type, in points."""
    hurdles: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Quality at which half the episodes of each type are right."""
    problems: float = 1.0
    """Standard deviations in points: of problems, of episodes on one, of an episode's actions."""
    episodes: float = 0.8
    actions: float = 0.6
    learned: float = 0.0
    """Points of quality gained over the run."""
    easiest_first: bool = False
    """Whether a type's problems come in the order of their ease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StressWorld:
    """A coach and the work it scores."""

    name: str
    sizes: Sizes = Sizes()
    ease: Ease = Ease()
    planted: Planted | None = None
    """None is an honest coach."""
    mood: Planted | None = None
    """What it gives to all types alike, as after a silent change of its model."""
    model_until: int | None = None
    """The last iteration of the coach's first model, where its replies name another one later."""
    lost: Lost | None = None
    noise: float = 1.0
    """Standard deviation of the coach's mood, in points."""
    heaped: float = 0.4
    """Share of scores that go to the nearest of `HEAPS`."""
    longer: float = 1.0
    """Length of the second type's work, as a multiple of the first's."""

    @property
    def honest(self) -> bool:
        """Whether nothing is planted."""
        return self.planted is None


def made_up(world: StressWorld, rng: np.random.Generator) -> Frame:
    """One run of that world as the audit reads it."""
    work = work_of(world, rng)
    score = scores_of(world, work, rng)
    count = len(score)
    return Frame(
        score=score,
        unparsed=np.isnan(score),
        task_type=Factor(codes=work.task_type, names=type_names(world)),
        agent=Factor(codes=work.agent, names=AGENTS),
        problem=problem_factor(work.problem),
        episode=work.episode,
        iteration=work.iteration,
        turn=work.agent,
        level=np.ones(count, dtype=np.int64),
        tokens=work.tokens,
        tool_used=work.agent == 1,
        tool_failed=(work.agent == 1) & (rng.random(count) < 0.15),
        success=work.success,
        advantage=np.full(count, np.nan),
        weight=np.full(count, 1 / count),
        cut_off=np.zeros(count, dtype=bool),
    )


def scores_of(world: StressWorld, work: Work, rng: np.random.Generator) -> Floats:
    """(N,) what the world's coach gives some work, NaN where the score is lost."""
    extra = sum((each(work) for each in (world.planted, world.mood) if each), np.zeros(1))
    felt = 5 + work.quality + extra + rng.normal(0, world.noise, len(work.quality))
    score = _put_in_points(felt, world.heaped, rng)
    if world.lost is not None:
        score[world.lost(work, score, rng)] = np.nan
    return score


def work_of(world: StressWorld, rng: np.random.Generator) -> Work:
    """What is done in one run of that world."""
    sizes, ease = world.sizes, world.ease
    kind = np.repeat(np.arange(len(sizes.problems)), sizes.problems)
    own = rng.normal(0, ease.problems, len(kind))
    when = _visits(kind, own, world, rng)
    times = rng.integers(sizes.episodes[0], sizes.episodes[1] + 1, len(kind))
    problem = np.repeat(np.arange(len(kind)), times)
    gained = ease.learned * when[problem] / max(sizes.iterations, 1)
    good = (np.array(ease.types)[kind] + own)[problem] + gained
    good = good + rng.normal(0, ease.episodes, len(problem))
    chance = 1 / (1 + np.exp(-2 * (good - np.array(ease.hurdles)[kind[problem]])))
    success = (rng.random(len(problem)) < chance).astype(float)
    episode = np.repeat(np.arange(len(problem)), len(AGENTS))
    type_of = kind[problem][episode]
    length = rng.normal(6, 0.7, len(episode)) + np.log2(world.longer) * (type_of == 1)
    return Work(
        task_type=type_of.astype(np.int64),
        agent=np.tile(np.arange(len(AGENTS)), len(problem)),
        problem=problem[episode].astype(np.int64),
        episode=episode.astype(np.int64),
        iteration=when[problem][episode].astype(np.int64),
        tokens=np.exp2(length).astype(np.int64),
        success=success[episode],
        quality=good[episode] + rng.normal(0, ease.actions, len(episode)),
    )


def _visits(kind: Ints, own: Floats, world: StressWorld, rng: np.random.Generator) -> Ints:
    """The iteration in which each problem is played."""
    order = -own if world.ease.easiest_first else rng.random(len(kind))
    when = np.empty(len(kind), dtype=np.int64)
    for code in np.unique(kind):
        rows = np.flatnonzero(kind == code)
        place = np.argsort(np.argsort(order[rows]))
        when[rows] = 1 + place * world.sizes.iterations // len(rows)
    return when


def _put_in_points(felt: Floats, heaped: float, rng: np.random.Generator) -> Floats:
    """Whole points, some of them pulled to the scores that coaches like."""
    nearest = HEAPS[np.abs(felt[:, None] - HEAPS).argmin(axis=1)]
    pulled = rng.random(len(felt)) < heaped
    return np.where(pulled, nearest, np.round(felt)).clip(0, 10)


def type_names(world: StressWorld) -> tuple[str, ...]:
    """The names of a world's task types."""
    return _names("type", len(world.sizes.problems))


def problem_factor(codes: Ints) -> Factor:
    """Problems by number."""
    return Factor(codes=codes, names=_names("p", int(codes.max()) + 1))


def _names(word: str, count: int) -> tuple[str, ...]:
    return tuple(f"{word} {number}" for number in range(count))
