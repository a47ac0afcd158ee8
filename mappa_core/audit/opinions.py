"""Several scores of one action: repeats, other coaches, people."""

from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Factor, Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinions:
    """One score per row, for the actions that have more than one."""

    action: Factor
    scorer: Factor
    """Coach, model, its version and the rubric's, in words."""
    repeat: Ints
    trained: Ints
    """1 for the score the update used."""
    score: Floats
    """In [0, 10]; NaN where there was none."""
    problem: Factor

    def __len__(self) -> int:
        return len(self.score)

    @property
    def trainer(self) -> int | None:
        """The scorer whose scores trained most actions; None where none did."""
        codes = self.scorer.codes[self.trained == 1]
        return int(np.bincount(codes).argmax()) if len(codes) else None

    def table(self, scorer: int) -> Floats:
        """(A, K) repeats of one scorer for every action, NaN where there are fewer."""
        rows = self.scorer.codes == scorer
        shape = (len(self.action.names), int(self.repeat[rows].max(initial=0)) + 1)
        table = np.full(shape, np.nan)
        # An absence that was made good stays as a row of the same action and repeat.
        rows &= ~np.isnan(self.score)
        table[self.action.codes[rows], self.repeat[rows]] = self.score[rows]
        return table

    def means(self, scorer: int) -> Floats:
        """(A,) the mean of one scorer's scores of every action; NaN where there is none."""
        table = self.table(scorer)
        counts = (~np.isnan(table)).sum(axis=1)
        sums = np.nansum(table, axis=1)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
