"""How far a figure of few problems may be off, from what it is without each of them."""

from scipy import special

from mappa_core.audit.frame import Floats

LEVEL = 0.95
FEWEST_PROBLEMS = 3
"""Below which there is no interval."""


def reach(without: Floats, sizes: Floats) -> float:
    """Half the 95 % interval of a figure that is about normal; Student's t.

    Problems of unequal size are worth fewer: the degrees of freedom are (sum m^2)^2 / sum m^4 - 1,
    Satterthwaite's where a problem of m actions that are alike moves the figure by m.

    Args:
        without: (P,) the figure without each problem.
        sizes: (P,) m, each problem's actions.
    """
    count = len(without)
    error = float(((without - without.mean()) ** 2).sum() * (count - 1) / count) ** 0.5
    freedom = max(float((sizes**2).sum()) ** 2 / float((sizes**4).sum()) - 1, 1.0)
    return float(special.stdtrit(freedom, (1 + LEVEL) / 2)) * error
