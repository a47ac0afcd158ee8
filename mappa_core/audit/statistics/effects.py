"""Which comparisons the audit makes: regressions of score on what must and must not matter.

    score = task type + agent x turn + length + tool use + failure + level + outcome + iteration

Task type must not matter between equal work, so its effects are the family of the bias verdicts:
each type against the mean of the others, over all actions and, because biases can cancel, within
right and within wrong episodes. The other effects may be deserved; they are reported as
associations and never called bias.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame
from mappa_core.audit.statistics.regression import (
    Estimate,
    Fit,
    cluster_sums,
    contrast,
    estimable,
    fit,
)
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS, Judged, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """One judged comparison, in points of score."""

    factor: str
    """`task_type`, or what an association is with."""
    subject: str
    """E.g. `regression`."""
    against: str
    """E.g. `classification`, or `the other types`."""
    stratum: str
    """`all`, `right` or `wrong` episodes, or an agent."""
    judged: Judged
    actions: int
    problems: int
    types: int = 2
    """How many task types were compared."""
    sql: str = ""
    """Gives the estimate from the views."""

    @property
    def excess(self) -> float:
        """What to take off the subject so that all types are alike.

        With two types it is the whole gap; among T the others' mean holds no share of the
        subject's, so its distance from the mean of all is (T - 1) / T of the gap.
        """
        whole = self.judged.estimate.value
        return whole if self.types == 2 else whole * (self.types - 1) / self.types


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A regression's matrix, its columns named `factor:level`."""

    values: Floats
    names: tuple[str, ...]
    sql: tuple[str, ...]
    """The columns again, as expressions on `audit.action_scores`."""

    def where(self, *parts: tuple[str, float]) -> Floats:
        """A contrast: weights of the named columns, 0 elsewhere."""
        weights = np.zeros(len(self.names))
        for name, weight in parts:
            if name in self.names:
                weights[self.names.index(name)] += weight
        return weights

    def query(self, fitted: Fit, weights: Floats, counted: str = "true") -> str:
        """The SQL that gives a contrast of the regression of score on these columns."""
        return sql.effect(as_sum(fitted, weights, self.sql), "score", counted=counted)


def task_type_effects(frame: Frame, margin: float = MARGIN_POINTS) -> tuple[Effect, ...]:
    """The bias family: every task type, over all episodes and within each outcome.

    Empty where there is but one task type or fewer than two problems.
    """
    frame = frame.judged()
    types = frame.task_type.present()
    if len(types) < 2 or len(frame.problem.present()) < 2:
        return ()
    found: list[tuple[str, int, Estimate, Frame, str]] = []
    overall, strata = _columns(frame, split=False), _columns(frame, split=True)
    whole, split = _fitted(overall, frame), _fitted(strata, frame)
    for stratum, columns, fitted, suffix in (
        ("all", overall, whole, ""),
        ("right", strata, split, "/right"),
        ("wrong", strata, split, "/wrong"),
    ):
        rows = _stratum(frame, stratum)
        for code in _compared(types):
            weights = _against_others(columns, types, code, suffix)
            if estimable(fitted, weights) and _both_sides(rows, code):
                query = columns.query(fitted, weights, _COUNTED[stratum])
                found.append((stratum, code, contrast(fitted, weights), rows, query))
    verdicts = judge([each[2] for each in found], [len(each[3]) for each in found], margin)
    return tuple(
        replace(_effect(frame, types, stratum, code, rows, judged), sql=query)
        for (stratum, code, _, rows, query), judged in zip(found, verdicts, strict=True)
    )


def associations(frame: Frame, margin: float = MARGIN_POINTS) -> tuple[Effect, ...]:
    """What else goes with score, everything else held: agent, turn, length, tool, iteration."""
    frame = frame.judged()
    if len(frame.problem.present()) < 2:
        return ()
    columns = _columns(frame, split=False)
    fitted = _fitted(columns, frame)
    wanted = [
        name for name in columns.names if not name.startswith(("constant", "task_type", "agent"))
    ]
    wanted += [name for name in columns.names if name.startswith("agent:")]
    usable = [name for name in wanted if estimable(fitted, columns.where((name, 1.0)))]
    estimates = [contrast(fitted, columns.where((name, 1.0))) for name in usable]
    verdicts = judge(estimates, [len(frame)] * len(estimates), margin)
    return tuple(
        Effect(
            factor=name.partition(":")[0],
            subject=name.partition(":")[2] or name,
            against=_UNITS.get(name, columns_reference(frame)),
            stratum="all",
            judged=judged,
            actions=len(frame),
            problems=len(frame.problem.present()),
            sql=columns.query(fitted, columns.where((name, 1.0))),
        )
        for name, judged in zip(usable, verdicts, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How success on one task type changed, less how it changed on the others, over the run."""

    estimate: Estimate
    sql: str


def growth(frame: Frame, code: int) -> Growth | None:
    """How much faster success changes on one task type than on the others.

    Args:
        frame: The actions.
        code: Of the task type.

    Returns:
        The difference of the changes from the first to the last iteration, or None where the
        data cannot tell.
    """
    frame = frame.take(~np.isnan(frame.success))
    if len(frame.problem.present()) < 2:
        return None
    favoured = (frame.task_type.codes == code).astype(float)
    member = f"(task_type = {sql.quoted(frame.task_type.names[code])})::int"
    time, when = _scaled(frame.iteration)
    columns = Columns(
        values=np.column_stack([np.ones(len(frame)), favoured, time, favoured * time]),
        names=("constant", "favoured", "time", "both"),
        sql=("1", member, when, f"{member} * {when}"),
    )
    fitted = fit(cluster_sums(columns.values, frame.success, frame.problem.codes))
    weights = columns.where(("both", 1.0))
    if not estimable(fitted, weights):
        return None
    rows = f"{sql.TRAINED} AND success IS NOT NULL"
    query = sql.effect(as_sum(fitted, weights, columns.sql), "success::int", rows)
    return Growth(estimate=contrast(fitted, weights), sql=query)


def as_sum(fitted: Fit, weights: Floats, columns: Sequence[str]) -> sql.WeightedSum:
    """A contrast as a weighted sum of what was explained."""
    used = [columns[int(index)] for index in fitted.used]
    return sql.WeightedSum(weights=fitted.bread @ weights[fitted.used], columns=used)


def columns_reference(frame: Frame) -> str:
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


def _fitted(columns: Columns, frame: Frame) -> Fit:
    return fit(cluster_sums(columns.values, frame.score, frame.problem.codes))


def _columns(frame: Frame, *, split: bool) -> Columns:
    """The regression's columns; `split` gives each task type an effect per outcome."""
    parts: list[tuple[str, Floats, str]] = [("constant", np.ones(len(frame)), "1")]
    parts.append(("outcome:right", frame.success, "success::int"))
    for code in frame.task_type.present()[1:]:
        member = (frame.task_type.codes == code).astype(float)
        name = f"task_type:{frame.task_type.names[code]}"
        asked = f"task_type = {sql.quoted(frame.task_type.names[code])}"
        if split:
            right, wrong = f"({asked} AND success)::int", f"({asked} AND NOT success)::int"
            parts.append((f"{name}/right", member * frame.success, right))
            parts.append((f"{name}/wrong", member * (1 - frame.success), wrong))
        else:
            parts.append((name, member, f"({asked})::int"))
    parts += _controls(frame)
    return Columns(
        values=np.column_stack([values for _, values, _ in parts]),
        names=tuple(name for name, _, _ in parts),
        sql=tuple(expression for _, _, expression in parts),
    )


def _controls(frame: Frame) -> list[tuple[str, Floats, str]]:
    failed = "(tool_status IS NOT NULL AND tool_status <> 'ok')::int"
    controls = [
        (
            "length",
            *_centred(np.log2(1.0 + frame.tokens), "ln(1 + sampled_tokens::float8) / ln(2)"),
        ),
        ("tool:used", frame.tool_used.astype(float), "(tool_status IS NOT NULL)::int"),
        ("tool:failed", frame.tool_failed.astype(float), failed),
        ("level", *_centred(frame.level.astype(float), "level")),
        ("iteration", *_scaled(frame.iteration)),
    ]
    for agent, turn in _cells(frame)[1:]:
        name = frame.agent.names[agent]
        member = (frame.agent.codes == agent) & (frame.turn == turn)
        asked = f"(agent = {sql.quoted(name)} AND turn_index = {turn})::int"
        controls.append((f"agent:{name}, turn {turn}", member.astype(float), asked))
    return controls


def _cells(frame: Frame) -> list[tuple[int, int]]:
    """Agent and turn pairs that occur, in playing order."""
    width = len(frame.agent.names)
    pairs = np.unique(frame.turn * width + frame.agent.codes)
    return [(int(pair % width), int(pair // width)) for pair in pairs]


def _compared(types: Sequence[int]) -> Sequence[int]:
    """With two types one comparison says it all; its mirror would only crowd the family."""
    return types[1:] if len(types) == 2 else types


def _against_others(columns: Columns, types: Sequence[int], code: int, suffix: str) -> Floats:
    """Weights of one type minus the mean of the others; the first type is the zero."""
    names = [name for name in columns.names if name.startswith("task_type:")]
    mine = [name for name in names if name.endswith(suffix)] if suffix else names
    others = len(types) - 1
    position = types.index(code) - 1
    parts = [(name, 1.0 if index == position else -1.0 / others) for index, name in enumerate(mine)]
    return columns.where(*parts)


def _stratum(frame: Frame, stratum: str) -> Frame:
    if stratum == "all":
        return frame
    return frame.take(frame.success == (stratum == "right"))


def _both_sides(rows: Frame, code: int) -> bool:
    member = rows.task_type.codes == code
    return bool(member.any() and not member.all())


def _effect(
    frame: Frame, types: Sequence[int], stratum: str, code: int, rows: Frame, judged: Judged
) -> Effect:
    names = frame.task_type.names
    return Effect(
        factor="task_type",
        subject=names[code],
        against=names[types[0]] if len(types) == 2 else "the other types",
        stratum=stratum,
        judged=judged,
        actions=len(rows),
        problems=len(rows.problem.present()),
        types=len(types),
    )


_COUNTED = {"all": "true", "right": "success", "wrong": "NOT success"}


def _centred(values: Floats, expression: str) -> tuple[Floats, str]:
    mean = float(values.mean()) if len(values) else 0.0
    return values - mean, f"({expression} - {mean!r})"


def _scaled(iteration: np.ndarray) -> tuple[Floats, str]:
    """Iterations as 0 (first) to 1 (last)."""
    first, last = int(iteration.min()), int(iteration.max())
    span = max(last - first, 1)
    return (iteration - first) / span, f"((iteration - {first}) / {span}::float8)"
