"""Which comparisons the audit makes: regressions of score on what must and must not matter.

    score = task type + agent x turn + length + tool use + failure + level + outcome + iteration

Task type must not matter between equal work, so its effects are the family of the bias verdicts:
each type against the mean of the others, over all actions and, because biases can cancel, within
right and within wrong episodes. The other effects may be deserved; they are reported as
associations and never called bias.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.records import Stratum
from mappa_core.audit.statistics.regression import (
    Estimate,
    Fit,
    cluster_sums,
    contrast,
    estimable,
    fit,
    row_weights,
)
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS, Judged, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One comparison, in points of score."""

    factor: str
    """`task_type`, or what an association is with."""
    subject: str
    """E.g. `regression`."""
    against: str
    """E.g. `classification`, or `the other types`."""
    stratum: Stratum
    """Which episodes."""
    estimate: Estimate
    actions: int
    problems: int
    types: int = 2
    """How many task types were compared."""
    sql: str
    """Gives the estimate from the views."""

    @property
    def excess(self) -> float:
        """What to take off the subject so that all types are alike.

        With two types it is the whole gap; among T the others' mean holds no share of the
        subject's, so its distance from the mean of all is (T - 1) / T of the gap.
        """
        whole = self.estimate.value
        return whole if self.types == 2 else whole * (self.types - 1) / self.types


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Comparison):
    """A comparison that was judged together with its family."""

    judged: Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """Score regressed on columns named `factor:level`."""

    names: tuple[str, ...]
    sql: tuple[str, ...]
    """The columns as expressions on `audit.action_scores`."""
    fitted: Fit

    def where(self, *parts: tuple[str, float]) -> Floats:
        """A contrast: weights of the named columns, 0 elsewhere."""
        weights = np.zeros(len(self.names))
        for name, weight in parts:
            if name in self.names:
                weights[self.names.index(name)] += weight
        return weights

    def query(self, weights: Floats, counted: str = "true") -> str:
        """The SQL that gives a contrast."""
        return sql.effect(row_weights(self.fitted, weights, self.sql), "score", counted=counted)


def task_type_effects(frame: Frame, margin: float = MARGIN_POINTS) -> tuple[Effect, ...]:
    """The bias family: every task type, over all episodes and within each outcome.

    Empty where there is but one task type or fewer than two problems.
    """
    frame = frame.judged()
    if len(frame.task_type.present()) < 2 or frame.problem_count < 2:
        return ()
    whole, split = _regression(frame, split=False), _regression(frame, split=True)
    comparisons = [
        *_comparisons(frame, whole, "all", "", "true"),
        *_comparisons(frame, split, "right", "/right", "success"),
        *_comparisons(frame, split, "wrong", "/wrong", "NOT success"),
    ]
    return _judged(comparisons, margin)


def associations(frame: Frame, margin: float = MARGIN_POINTS) -> tuple[Effect, ...]:
    """What else goes with score, everything else held: agent, turn, length, tool, iteration."""
    frame = frame.judged()
    if frame.problem_count < 2:
        return ()
    model = _regression(frame, split=False)
    others = [
        name for name in model.names if not name.startswith(("constant", "task_type", "agent"))
    ]
    agents = [name for name in model.names if name.startswith("agent:")]
    found = [each for name in others + agents for each in _association(frame, model, name)]
    return _judged(found, margin)


def _association(frame: Frame, model: Regression, name: str) -> Iterator[Comparison]:
    """What one column goes with, where the data can tell."""
    weights = model.where((name, 1.0))
    if estimable(model.fitted, weights):
        factor, _, level = name.partition(":")
        yield Comparison(
            factor=factor,
            subject=level or name,
            against=_UNITS.get(name, _reference(frame)),
            stratum="all",
            estimate=contrast(model.fitted, weights),
            actions=len(frame),
            problems=frame.problem_count,
            sql=model.query(weights),
        )


def _comparisons(
    frame: Frame, model: Regression, stratum: Stratum, suffix: str, counted: str
) -> Iterator[Comparison]:
    """Yield every task type against the others, of one stratum.

    Args:
        frame: Judged actions of all strata.
        model: The regression that has the stratum's columns.
        stratum: Its name.
        suffix: Of its columns' names.
        counted: Which rows it counts, in SQL.
    """
    types, names = frame.task_type.present(), frame.task_type.names
    rows = frame if stratum == "all" else frame.take(frame.success == (stratum == "right"))
    for code in _compared(types):
        weights = _against_others(model, types, code, suffix)
        if estimable(model.fitted, weights) and _both_sides(rows, code):
            yield Comparison(
                factor="task_type",
                subject=names[code],
                against=names[types[0]] if len(types) == 2 else "the other types",
                stratum=stratum,
                estimate=contrast(model.fitted, weights),
                actions=len(rows),
                problems=rows.problem_count,
                types=len(types),
                sql=model.query(weights, counted),
            )


def _judged(family: Sequence[Comparison], margin: float) -> tuple[Effect, ...]:
    """Judge comparisons as one family."""
    verdicts = judge([each.estimate for each in family], [each.actions for each in family], margin)
    return tuple(
        Effect(**{field.name: getattr(each, field.name) for field in fields(each)}, judged=judged)
        for each, judged in zip(family, verdicts, strict=True)
    )


def _reference(frame: Frame) -> str:
    """The agent and turn that the others are compared with."""
    agent, turn = _cells(frame)[0]
    return f"{frame.agent.names[agent]}, turn {turn}"


_UNITS = {
    "length": "per doubling of the tokens",
    "tool:used": "no tool call",
    "tool:failed": "a tool call that worked",
    "level": "per level of difficulty",
    "outcome:right": "wrong episodes",
    "iteration": "from the first to the last iteration",
}


def _regression(frame: Frame, *, split: bool) -> Regression:
    """Regress score on what must and must not matter.

    Args:
        frame: Judged actions.
        split: Whether each task type has an effect per outcome.
    """
    parts: list[tuple[str, Floats, str]] = [
        ("constant", np.ones(len(frame)), "1"),
        ("outcome:right", frame.success, "success::int"),
        *_types(frame, split=split),
        *_controls(frame),
    ]
    values = np.column_stack([values for _, values, _ in parts])
    return Regression(
        names=tuple(name for name, _, _ in parts),
        sql=tuple(expression for _, _, expression in parts),
        fitted=fit(cluster_sums(values, frame.score, frame.problem.codes)),
    )


def _types(frame: Frame, *, split: bool) -> Iterator[tuple[str, Floats, str]]:
    """Yield the columns of every task type but the first, which is the zero."""
    for code in frame.task_type.present()[1:]:
        member = (frame.task_type.codes == code).astype(float)
        name = f"task_type:{frame.task_type.names[code]}"
        matches = f"task_type = {sql.quoted(frame.task_type.names[code])}"
        if split:
            right, wrong = f"({matches} AND success)::int", f"({matches} AND NOT success)::int"
            yield f"{name}/right", member * frame.success, right
            yield f"{name}/wrong", member * (1 - frame.success), wrong
        else:
            yield name, member, f"({matches})::int"


def _controls(frame: Frame) -> Iterator[tuple[str, Floats, str]]:
    failed = "(tool_status IS NOT NULL AND tool_status <> 'ok')::int"
    length = "ln(1 + sampled_tokens::float8) / ln(2)"
    yield "length", *_centred(np.log2(1.0 + frame.tokens), length)
    yield "tool:used", frame.tool_used.astype(float), "(tool_status IS NOT NULL)::int"
    yield "tool:failed", frame.tool_failed.astype(float), failed
    yield "level", *_centred(frame.level.astype(float), "level")
    yield "iteration", *scaled(frame.iteration)
    for agent, turn in _cells(frame)[1:]:
        name = frame.agent.names[agent]
        member = (frame.agent.codes == agent) & (frame.turn == turn)
        matches = f"(agent = {sql.quoted(name)} AND turn_index = {turn})::int"
        yield f"agent:{name}, turn {turn}", member.astype(float), matches


def _cells(frame: Frame) -> list[tuple[int, int]]:
    """Agent and turn pairs that occur, in playing order."""
    width = len(frame.agent.names)
    pairs = np.unique(frame.turn * width + frame.agent.codes)
    return [(int(pair % width), int(pair // width)) for pair in pairs]


def _compared(types: Sequence[int]) -> Sequence[int]:
    """With two types one comparison says it all; its mirror would only crowd the family."""
    return types[1:] if len(types) == 2 else types


def _against_others(model: Regression, types: Sequence[int], code: int, suffix: str) -> Floats:
    """Weights of one type minus the mean of the others; the first type is the zero."""
    names = [name for name in model.names if name.startswith("task_type:")]
    own = [name for name in names if name.endswith(suffix)]
    others = len(types) - 1
    position = types.index(code) - 1
    parts = [(name, 1.0 if index == position else -1.0 / others) for index, name in enumerate(own)]
    return model.where(*parts)


def _both_sides(rows: Frame, code: int) -> bool:
    member = rows.task_type.codes == code
    return bool(member.any() and not member.all())


def _centred(values: Floats, expression: str) -> tuple[Floats, str]:
    mean = float(values.mean()) if len(values) else 0.0
    return values - mean, f"({expression} - {mean!r})"


def scaled(iteration: np.ndarray) -> tuple[Floats, str]:
    """Iterations as 0 (first) to 1 (last), and in SQL."""
    first, last = int(iteration.min()), int(iteration.max())
    span = max(last - first, 1)
    return (iteration - first) / span, f"((iteration - {first}) / {span}::float8)"
