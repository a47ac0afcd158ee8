"""What the audit reads, in columns: training scores, repeated ratings, and people's labels.

N actions. Categories are codes into `names`; everything here can be had from the views of the
schema `audit`, years later, from a dump.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A categorical column: (N,) codes into names, in the names' order."""

    codes: Ints
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str]) -> "Factor":
        """Encode values; names are sorted."""
        names, codes = np.unique(np.asarray(values, dtype=str), return_inverse=True)
        return cls(codes=codes.astype(np.int64), names=tuple(str(name) for name in names))

    def __getitem__(self, rows: Mask | Ints) -> "Factor":
        """The factor of some rows; names stay."""
        return Factor(codes=self.codes[rows], names=self.names)

    def present(self) -> tuple[int, ...]:
        """Codes that occur, ascending."""
        return tuple(int(code) for code in np.unique(self.codes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """N actions the coach was asked about, one row each."""

    score: Floats
    """In [0, 10]; NaN where the coach gave none."""
    unparsed: Mask
    """Whether there is none because its reply could not be read."""
    task_type: Factor
    agent: Factor
    problem: Factor
    """The clusters: actions on one problem share its difficulty."""
    episode: Ints
    """A number of its episode's own."""
    iteration: Ints
    turn: Ints
    level: Ints
    tokens: Ints
    """Sampled by the action."""
    tool_used: Mask
    tool_failed: Mask
    success: Floats
    """1 right, 0 wrong, NaN where the episode has no outcome."""
    advantage: Floats
    """NaN where no update counted the action."""
    weight: Floats
    """Share of its update's loss."""
    cut_off: Mask
    """Whether its update left it out because it was truncated."""

    def __len__(self) -> int:
        return len(self.score)

    @property
    def problem_count(self) -> int:
        """Different problems among the rows."""
        return len(self.problem.present())

    def take(self, rows: Mask | Ints) -> "Frame":
        """Some of the rows."""
        return Frame(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def judged(self) -> "Frame":
        """The rows that have both a score and an outcome."""
        return self.take(~np.isnan(self.score) & ~np.isnan(self.success))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """Every score of the actions that have several: repeats, other coaches; one row each."""

    action: Factor
    problem: Factor
    task_type: Factor
    agent: Factor
    scorer: Factor
    """Coach, model, its version and the rubric's, in words."""
    repeat: Ints
    trained: Ints
    """1 for the score the update used."""
    score: Floats
    """In [0, 10]; NaN where there was none."""

    @property
    def trainer(self) -> int | None:
        """The scorer whose scores trained most actions; None where none did."""
        codes = self.scorer.codes[self.trained == 1]
        return int(np.bincount(codes).argmax()) if len(codes) else None

    def beside(self, scorer: int) -> "LabelledScores":
        """The scores of the coach that trained beside a scorer's; A actions, all that both gave."""
        first = np.unique(self.action.codes, return_index=True)[1]
        scores = np.full(len(first), np.nan) if self.trainer is None else self.means(self.trainer)
        labels = self.means(scorer)
        return LabelledScores(
            scores=np.where(np.isnan(labels), np.nan, scores),
            labels=labels,
            problem=self.problem[first],
            task_type=self.task_type[first],
            agent=self.agent[first],
            at_random=~np.isnan(labels),
            sampled=~np.isnan(labels),
        )

    def table(self, scorer: int) -> Floats:
        """(A, K) repeats of one scorer for every action, NaN where there are fewer."""
        rows = self.scorer.codes == scorer
        shape = (len(self.action.names), int(self.repeat[rows].max(initial=0)) + 1)
        table = np.full(shape, np.nan)
        # An absence that was made good stays as a row of the same action and repeat.
        rows &= ~np.isnan(self.score)
        table[self.action.codes[rows], self.repeat[rows]] = self.score[rows]
        return table

    def again(self) -> Floats:
        """(A,) a second scoring of every action by the coach that trained; NaN where none is."""
        if self.trainer is None:
            return np.full(len(self.action.names), np.nan)
        # The score that trained is repeat 0 of its coach.
        later = self.table(self.trainer)[:, 1:]
        counts = (~np.isnan(later)).sum(axis=1)
        first = np.where(counts > 0, (~np.isnan(later)).argmax(axis=1) if later.size else 0, 0)
        rows = np.arange(len(later))
        return later[rows, first] if later.size else np.full(len(later), np.nan)

    def means(self, scorer: int) -> Floats:
        """(A,) the mean of one scorer's scores of every action; NaN where there is none."""
        table = self.table(scorer)
        counts = (~np.isnan(table)).sum(axis=1)
        sums = np.nansum(table, axis=1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledScores:
    """The coach's scores of N actions, and people's of some; (N,) each."""

    scores: Floats
    labels: Floats
    """NaN where there is none; the mean where several people gave one."""
    problem: Factor
    task_type: Factor
    agent: Factor
    at_random: Mask
    """Whether the action was labelled because a random sample of all drew it."""
    sampled: Mask
    """Whether it was because a random sample of its agent and task type drew it."""

    def scored(self) -> "LabelledScores":
        """The actions that the coach scored."""
        rows = ~np.isnan(self.scores)
        kept = {field.name: getattr(self, field.name)[rows] for field in fields(self)}
        return LabelledScores(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Scorings of stored actions, as they were or with one thing changed; one row each."""

    action: Factor
    problem: Factor
    task_type: Factor
    """The problem's own, whatever the coach was told."""
    agent: Factor
    iteration: Ints
    """In which the action was played and scored."""
    success: Floats
    """1 right, 0 wrong, NaN where the episode has no outcome."""
    change: Factor
    """Of `records.CHANGES`."""
    put: Factor
    """What was put in the place of what was changed, e.g. another task type; '' for nothing."""
    unseen: Mask
    """Whether the change does not reach the coach, so that the plain scoring is its score."""
    score: Floats
    """In [0, 10]; NaN where there is none."""
    stored: Floats
    """The score that trained the action; NaN where there is none."""

    def __len__(self) -> int:
        return len(self.score)
