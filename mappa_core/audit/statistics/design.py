"""The regression behind the audit's comparisons, and what its contrasts rest on.

    score = difficulty + task type + agent x turn + length + tools + level + quarter + iteration

Difficulty is the own outcome and the expected skill on the problem (`difficulty`). Length counts as
its distance from the mean of the task type: a type whose work is longer must not be paid for that.
Time is the quarter of the run in which the problem was first played, which the expected skill is
given too, and the iterations since then. A finer time would say more of a problem's difficulty than
the skill knows, where problems come easiest first: neighbours in time would be alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Frame, Ints, Mask
from mappa_core.audit.statistics.difficulty import Difficulty, Moves, difficulty
from mappa_core.audit.statistics.layout import agent_turns, linked, scaled
from mappa_core.audit.statistics.regression import (
    Estimate,
    Fit,
    cluster_sums,
    contrast,
    fit,
    p_value,
    row_weights,
)

MOST_LEVELS = 10
"""Of the stored difficulty that have a stratum each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Actions whose episodes have outcomes, some unscored, and their problems' difficulty."""

    frame: Frame
    skills: Difficulty
    source: str
    """The rows as SQL, with the columns `skill_others`, `skill_own` and `surprise`."""
    places: Ints
    """(N,) where the rows are among the run's."""
    where: str
    """Which of them they are, in SQL."""

    @classmethod
    def of(cls, frame: Frame, inside: Mask | None = None, where: str = "true") -> "Work":
        """The rows of a run that have an outcome, as far as they lie inside a part of it.

        Args:
            frame: The run's actions.
            inside: (N,) which of them; None for all.
            where: The same in SQL.
        """
        wanted = ~np.isnan(frame.success)
        places = np.flatnonzero(wanted if inside is None else wanted & inside)
        rows = frame.take(places)
        skills = difficulty(rows)
        names = rows.task_type.names
        table = {
            (names[code], level, *skills.windows[part], played, right): (found.skill, found.success)
            for (code, level, part), stratum in skills.levels.items()
            for (name, played, right), found in skills.table.items()
            if name == stratum
        }
        source = sql.with_skill(table, where)
        return cls(frame=rows, skills=skills, source=source, places=places, where=where)

    def take(self, rows: Mask, where: str) -> "Work":
        """Some of the rows; the difficulty of their problems stays what all rows say."""
        frame, skills = self.frame.take(rows), self.skills.take(rows)
        return Work(
            frame=frame,
            skills=skills,
            source=f"{self.source} AND {where}",
            places=self.places[rows],
            where=f"{self.where} AND {where}",
        )

    @property
    def scored(self) -> Mask:
        """(N,) whether there is a score."""
        return ~np.isnan(self.frame.score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a regression."""

    name: str
    """`factor:level`."""
    values: Floats
    """(N,)."""
    sql: str
    measures_difficulty: bool = False
    follows: Moves | None = None
    """How far each value moves with its type's mean skill and spread, which are estimated."""


@dataclass(frozen=True, kw_only=True)
class Regression:
    """Score regressed on named columns."""

    work: Work
    columns: tuple[Column, ...]
    x: Floats
    """(N, k), rows without a score included."""
    fitted: Fit

    @classmethod
    def of(cls, work: Work, columns: tuple[Column, ...]) -> "Regression":
        """Fit the rows that have a score.

        Raises:
            ValueError: They are on fewer than two problems.
        """
        x = np.column_stack([column.values for column in columns])
        scored, frame = work.scored, work.frame
        sums = cluster_sums(x[scored], frame.score[scored], frame.problem.codes[scored])
        # The values are in `x`; what is kept of a column is its name and its SQL.
        kept = tuple(replace(column, values=column.values[:0]) for column in columns)
        return cls(work=work, columns=kept, x=x, fitted=fit(sums))

    def where(self, *parts: tuple[str, float]) -> Floats:
        """A contrast: weights of the named columns, 0 elsewhere."""
        weights, names = np.zeros(len(self.columns)), [column.name for column in self.columns]
        for name, weight in parts:
            if name in names:
                weights[names.index(name)] += weight
        return weights

    def query(self, weights: Floats, counted: str = "true") -> str:
        """The SQL that gives a contrast."""
        columns = [column.sql for column in self.columns]
        return sql.effect(
            row_weights(self.fitted, weights, columns),
            "score",
            f"{self.work.source} AND score IS NOT NULL",
            counted,
        )

    def estimate(self, weights: Floats) -> Estimate:
        """A contrast, with the error of the skills it holds constant."""
        found = contrast(self.fitted, weights)
        variance = found.standard_error**2 + self.skill_variance(weights)
        error = float(np.sqrt(variance))
        p = p_value(found.value, error, found.degrees_of_freedom)
        return replace(found, standard_error=error, p_value=p)

    def row_weights(self, weights: Floats, rows: Mask) -> Floats:
        """What each of some rows is multiplied with in the contrast."""
        used = self.fitted.used
        return self.x[rows][:, used] @ (self.fitted.bread @ weights[used])

    def skill_variance(self, weights: Floats) -> float:
        """Variance of a contrast that comes from not knowing mean skills and spreads.

        The contrast moves with one of them by the sum over its rows of their weight times the slope
        on the skill times how the skill moves.
        """
        moving = [
            (column.follows, slope)
            for column, slope in zip(self.columns, self.fitted.coefficients, strict=True)
            if column.follows is not None and slope
        ]
        if not moving:
            return 0.0
        scored = self.work.scored
        skills, rows = self.work.skills.take(scored), self.row_weights(weights, scored)
        moved = sum(slope * skills.moved(follows[scored] * rows) for follows, slope in moving)
        return float(skills.variances @ moved**2)

    @cached_property
    def residuals(self) -> Floats:
        """Of the scored rows."""
        scored = self.work.scored
        return self.work.frame.score[scored] - self.x[scored] @ self.fitted.coefficients


def whole_design(work: Work) -> tuple[Column, ...]:
    """Columns for comparisons over all episodes.

    The own outcome enters as its surprise, which no type and no other outcome predicts, so that it
    makes the comparison sharper and leaves it where it is.
    """
    skills = work.skills
    if not skills.measured:
        outcome = Column(
            name="outcome:right",
            values=work.frame.success,
            sql="success::int",
            measures_difficulty=True,
        )
        return (constant(work), outcome, *_types(work), *controls(work))
    hard = (
        Column(
            name="outcome:right",
            values=skills.surprise,
            sql="surprise",
            measures_difficulty=True,
            follows=skills.surprise_follow,
        ),
        Column(
            name="skill",
            values=skills.others,
            sql="skill_others",
            measures_difficulty=True,
            follows=skills.others_follow,
        ),
    )
    return (constant(work), *hard, *_types(work), *controls(work))


def split_design(work: Work) -> tuple[Column, ...]:
    """Columns for comparisons within right and within wrong episodes."""
    right = work.frame.success
    parts = [constant(work), Column(name="outcome:right", values=right, sql="success::int")]
    if work.skills.measured:
        own, follow = work.skills.own, work.skills.own_follow
        parts += [
            Column(
                name=f"skill/{word}",
                values=own * inside,
                sql=f"skill_own * ({condition})::int",
                measures_difficulty=True,
                follows=follow * inside,
            )
            for word, condition, inside in (
                ("right", "success", right),
                ("wrong", "NOT success", 1 - right),
            )
        ]
    return (*parts, *_types(work, split=True), *controls(work))


def constant(work: Work) -> Column:
    """The column that every regression has."""
    return Column(name="constant", values=np.ones(len(work.frame)), sql="1")


def _types(work: Work, *, split: bool = False) -> Iterator[Column]:
    """Yield the columns of every task type but the first, which is the zero."""
    frame = work.frame
    for code in frame.task_type.present()[1:]:
        member = (frame.task_type.codes == code).astype(float)
        name = f"task_type:{frame.task_type.names[code]}"
        matches = f"task_type = {sql.quoted(frame.task_type.names[code])}"
        if split:
            right, wrong = f"({matches} AND success)::int", f"({matches} AND NOT success)::int"
            yield Column(name=f"{name}/right", values=member * frame.success, sql=right)
            yield Column(name=f"{name}/wrong", values=member * (1 - frame.success), sql=wrong)
        else:
            yield Column(name=name, values=member, sql=f"({matches})::int")


def controls(work: Work) -> Iterator[Column]:
    """Yield what is held constant beside difficulty."""
    frame = work.frame
    failed = "(tool_status IS NOT NULL AND tool_status <> 'ok')::int"
    yield _length(work)
    yield Column(
        name="tool:used",
        values=frame.tool_used.astype(float),
        sql="(tool_status IS NOT NULL)::int",
    )
    yield Column(name="tool:failed", values=frame.tool_failed.astype(float), sql=failed)
    yield from _levels(work)
    yield from _times(work)
    for agent, turn in agent_turns(frame)[1:]:
        name = frame.agent.names[agent]
        member = (frame.agent.codes == agent) & (frame.turn == turn)
        matches = f"(agent = {sql.quoted(name)} AND turn_index = {turn})::int"
        yield Column(name=f"agent:{name}, turn {turn}", values=member.astype(float), sql=matches)


def _levels(work: Work) -> Iterator[Column]:
    """Yield the stored difficulty: a stratum for each level where types share levels, else a line.

    Level 0 is where the source does not say, which no line through the others fits. Strata need
    levels that link every two types: without, a type's gap would be one between levels.
    """
    frame = work.frame.take(work.scored)
    levels = np.unique(frame.level)
    if len(levels) <= MOST_LEVELS and linked(frame.task_type.codes, frame.level):
        for level in levels[1:].tolist():
            member = (work.frame.level == level).astype(float)
            yield Column(name=f"level:{level}", values=member, sql=f"(level = {level})::int")
    else:
        mean = float(work.frame.level.mean())
        centred = work.frame.level.astype(float) - mean
        yield Column(name="level", values=centred, sql=f"(level - {mean!r})")


def _times(work: Work) -> Iterator[Column]:
    """Yield the quarter in which problems were first played, and the iterations since then.

    Where quarters do not link the types, a line through the iterations.
    """
    frame, skills, scored = work.frame, work.skills, work.scored
    quarter = np.searchsorted([last for _, last in skills.windows], skills.first)
    if not linked(frame.task_type.codes[scored], quarter[scored]):
        values, expression = scaled(frame.iteration)
        yield Column(name="iteration", values=values, sql=expression)
        return
    for number in np.unique(quarter[scored])[1:].tolist():
        first, last = skills.windows[number]
        yield Column(
            name=f"window:problems first played in iterations {first} to {last}",
            values=(quarter == number).astype(float),
            sql=f"(first_iteration BETWEEN {first} AND {last})::int",
        )
    span = max(int(np.ptp(frame.iteration)), 1)
    yield Column(
        name="iteration",
        values=(frame.iteration - skills.first) / span,
        sql=f"((iteration - first_iteration) / {span}::float8)",
    )


def _length(work: Work) -> Column:
    """Doublings of the tokens, as the distance from the mean of the task type."""
    frame = work.frame
    codes = frame.task_type.codes
    length: Floats = np.log2(1.0 + frame.tokens)
    means: Floats = np.bincount(codes, weights=length) / np.maximum(np.bincount(codes), 1)
    cases = " ".join(
        f"WHEN {sql.quoted(frame.task_type.names[code])} THEN {float(means[code])!r}"
        for code in frame.task_type.present()
    )
    expression = f"(ln(1 + sampled_tokens::float8) / ln(2) - CASE task_type {cases} END)"
    return Column(name="length", values=np.subtract(length, means[codes]), sql=expression)
