"""How far a figure of few problems may be off, from what it is without each of them."""

from scipy import special

from mappa_core.audit.frame import Floats

LEVEL = 0.95
FEWEST_PROBLEMS = 3
"""Below which there is no interval."""


def reach(without: Floats, sizes: Floats) -> float:
    """Half the 95 % interval of a figure that is about normal.

    Student's t has as many degrees of freedom as problems that are equal in what they move the
    figure by, if that is fewer than by their sizes: one that few problems decide is less sure.

    Args:
        without: (P,) the figure without each problem.
        sizes: (P,) each problem's actions.
    """
    moved = (without - without.mean()) ** 2
    if not moved.any():
        return 0.0
    return student(min(max(_equal(moved), 1.0), freedom(sizes))) * deviation(without)


def deviation(without: Floats) -> float:
    """The jackknife's standard error of a figure, from (P,) figures without each problem."""
    count = len(without)
    return float(((without - without.mean()) ** 2).sum() * (count - 1) / count) ** 0.5


def freedom(sizes: Floats) -> float:
    """Satterthwaite's degrees of freedom, where a problem of m actions moves a figure by m."""
    return max(_equal(sizes**2) - 1, 1.0)


def student(degrees: float) -> float:
    """Student's t of 95 %, two-sided."""
    return float(special.stdtrit(degrees, (1 + LEVEL) / 2))


def _equal(variances: Floats) -> float:
    """How many equal variances are as sure as these."""
    return float(variances.sum()) ** 2 / float((variances**2).sum())
