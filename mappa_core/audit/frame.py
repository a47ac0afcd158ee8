"""What the audit reads: one training score per row, in columns.

N actions. Categories are codes into `names`; everything here can be had from the views of the
schema `audit`, years later, from a dump.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

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

    def take(self, rows: Mask) -> "Factor":
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

    def __len__(self) -> int:
        return len(self.score)

    def take(self, rows: Mask) -> "Frame":
        """Some of the rows."""
        columns: dict[str, Any] = {
            field.name: _taken(getattr(self, field.name), rows) for field in fields(self)
        }
        return Frame(**columns)

    def take_iterations(self, *, upto: int) -> "Frame":
        """The rows of the iterations up to one."""
        return self.take(self.iteration <= upto)

    def judged(self) -> "Frame":
        """The rows that have both a score and an outcome."""
        return self.take(~np.isnan(self.score) & ~np.isnan(self.success))


def _taken(column: object, rows: Mask) -> object:
    if isinstance(column, Factor):
        return column.take(rows)
    assert isinstance(column, np.ndarray)
    return column[rows]
