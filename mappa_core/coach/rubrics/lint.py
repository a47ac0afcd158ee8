"""Whether a rubric treats kinds of work alike; a coach is only as fair as the words it is given.

The reference's rubric capped poor classification at 3 and poor regression at 4, and measured
regression by the error over the target's range, which grows with the size of the test set: two
of the ways in which one kind of task earned more than another for the same quality of work.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mappa_core.coach.rubrics import Rubric, RubricSet, TaskType
from mappa_core.coach.rubrics.arithmetic import VALUES
from mappa_core.core.records.episodes import MEASURED

METRICS: Mapping[str, str | None] = {
    **dict.fromkeys(VALUES),
    "rmse": "is in the target's unit: use rmse_over_sd",
    "mse": "is in the target's unit squared: use rmse_over_sd",
    "mae": "is in the target's unit: use mae_over_mad",
    "rmse_percent_of_range": "grows smaller with the test set, as the range grows: rmse_over_sd",
    "sum_squared_error": "grows with the test set: use rmse_over_sd",
    "errors": "grows with the test set: use share_correct",
    "correct": "grows with the test set: use share_correct",
}
"""Metrics a scale may use, and why not the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintFinding:
    """One way in which a rubric is unfair or incomplete."""

    where: str
    """Rubric set and agent, e.g. `paper-1/analyst`."""
    what: str


def lint(rubrics: RubricSet) -> tuple[LintFinding, ...]:
    """All findings of a rubric set; none means that it treats task types alike."""
    return tuple(
        LintFinding(where=f"{rubrics.name}/{agent}", what=what)
        for agent, rubric in rubrics.rubrics.items()
        for what in _findings(rubric)
    )


def _findings(rubric: Rubric) -> Iterator[str]:
    yield from _bands(rubric)
    yield from _alike(rubric)
    yield from _mentions(rubric)
    for name, kind in rubric.task_types.items():
        yield from (f"task type {name}: {what}" for what in _task_type(name, kind))


def _bands(rubric: Rubric) -> Iterator[str]:
    bands = sorted(rubric.bands, key=lambda band: band.lowest)
    if bands[0].lowest > 0 or bands[-1].highest < 10:
        yield "the bands do not reach from 0 to 10"
    for below, above in itertools.pairwise(bands):
        if not 0 <= above.lowest - below.highest <= 1:
            yield f"the bands leave a gap or overlap at {below.highest:g}"


def _alike(rubric: Rubric) -> Iterator[str]:
    """What must be equal over all task types of one agent."""
    kinds = rubric.task_types.values()
    same: Mapping[str, Callable[[TaskType], object]] = {
        "floors": lambda kind: kind.floor,
        "caps": lambda kind: kind.cap,
        "caps of the metric's scale": lambda kind: (
            [step.cap for step in kind.scale],
            kind.otherwise,
        ),
        "scores of the worked examples": lambda kind: sorted(e.score for e in kind.examples),
        "use of a metric": lambda kind: kind.metric is None,
    }
    for what, of in same.items():
        first, *others = (of(kind) for kind in kinds)
        if any(other != first for other in others):
            yield f"task types differ in their {what}"


def _task_type(name: str, kind: TaskType) -> Iterator[str]:
    if not kind.examples:
        yield "it has no worked example"
    if any(not kind.floor <= example.score <= kind.cap for example in kind.examples):
        yield "a worked example lies outside floor and cap"
    if kind.metric is not None:
        yield from _scale(kind, kind.metric)
        yield from _unseen(name, kind.metric)


def _scale(kind: TaskType, metric: str) -> Iterator[str]:
    if metric not in METRICS:
        yield f"metric {metric} is not known: choose one of {', '.join(sorted(METRICS))}"
    elif (why_not := METRICS[metric]) is not None:
        yield f"metric {metric} {why_not}"
    caps = [step.cap for step in kind.scale] + [c for c in (kind.otherwise,) if c is not None]
    bounds = [step.bound for step in kind.scale]
    if kind.otherwise is None:
        yield "its scale does not say what is below the last step"
    if caps != sorted(set(caps), reverse=True):
        yield "the caps of its scale do not fall"
    if bounds != sorted(set(bounds), reverse=kind.better == "higher"):
        yield "the bounds of its scale are not in order, best first"


def _unseen(task_type: str, metric: str) -> Iterator[str]:
    """What a cap names and the evidence of its kind of task never holds."""
    shown = MEASURED.get(task_type, ())
    if metric in VALUES and metric not in shown:
        said = ", ".join(sorted({*shown} & {*VALUES})) or "nothing that a cap may name"
        yield f"metric {metric} is not in the coach's evidence, which has {said}"


def _mentions(rubric: Rubric) -> Iterator[str]:
    """Words outside the task types that name some of the task types and not the others."""
    texts = [rubric.role, *rubric.considers]
    texts += [text for c in rubric.criteria for text in (c.name, c.description)]
    texts += [band.means for band in rubric.bands]
    words = " ".join(texts).casefold()
    named = {name for name in rubric.task_types if name.replace("_", " ") in words}
    if named and named != set(rubric.task_types):
        yield f"its words speak of {', '.join(sorted(named))} and not of the other task types"
