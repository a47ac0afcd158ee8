"""An honest coach of a run's work, made from the run's own scores; see `rates`.

    score*  =  fitted without the task types  +  w_g x corrected residual,   w_g = +1 or -1

for every problem g: the wild cluster bootstrap (Cameron, Gelbach & Miller 2008), on residuals that
CR2 corrects for their leverage. All of a problem's scores turn together, so what its episodes and
agents have in common stays; work, outcomes, sizes, lengths and missing scores are the run's own,
and so are the spread of easy and hard work, heaps and ceiling, of which nothing is modelled.
"""

from dataclasses import dataclass

import numpy as np

from mappa_core.audit.frame import Floats, Ints, Mask
from mappa_core.audit.statistics.design import Regression
from mappa_core.audit.statistics.health import HIGHEST
from mappa_core.audit.statistics.regression import corrected_residuals
from mappa_core.audit.statistics.rescored import clusters


@dataclass(frozen=True, kw_only=True)
class HonestCoach:
    """What the n scored actions of a run deserve by its own regression, and what is left over."""

    places: Ints
    """(n,) where they are among the run's `size` actions."""
    size: int
    problem: Ints
    """(n,) codes from 0."""
    deserved: Floats
    left: Floats
    """(n,) residuals."""
    room: Floats
    """(n,) points up to the end of the scale."""

    @classmethod
    def of(cls, model: Regression, size: int) -> "HonestCoach":
        """The coach that a regression over all episodes describes, without its task types."""
        scored, problem = model.work.scored, clusters(model)[0]
        honest = np.array([not c.name.startswith("task_type") for c in model.columns])
        return cls(
            places=model.work.places[scored],
            size=size,
            problem=problem,
            deserved=model.x[scored] @ (model.fitted.coefficients * honest),
            left=corrected_residuals(model.fitted, model.x[scored], model.residuals, problem),
            room=HIGHEST - model.work.frame.score[scored],
        )

    def scores(self, rng: np.random.Generator, runs: int) -> Floats:
        """(N, S) scores of all actions in S runs; NaN where the run has none."""
        turned = rng.choice([-1.0, 1.0], (int(self.problem.max()) + 1, runs))
        return self.placed(self.deserved[:, None] + self.left[:, None] * turned[self.problem])

    def more(self, favoured: Mask, points: float) -> Floats:
        """(N, 1) what a kinder coach adds, as far as the scale goes; (n,) the work it favours."""
        return self.placed(np.minimum(points, self.room) * favoured)

    def placed(self, values: Floats | Mask) -> Floats:
        """(N, S) for all the run's actions, from (n,) or (n, S); NaN where it has no score."""
        columns = values.reshape(len(values), -1)
        scores = np.full((self.size, columns.shape[1]), np.nan)
        scores[self.places] = columns
        return scores
