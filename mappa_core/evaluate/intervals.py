"""Intervals for means over few problems, at 95 %.

Both widen the spread between problems by what a further problem could have shown, so that problems
that happen to agree are not taken for all there are. `pytest tests/unit/evaluate/test_intervals.py`
holds their coverage in worlds of its own; docs/evaluation.md has the measured rates.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import special

LEVEL = 0.95
Floats = NDArray[np.float64]


def few_changes(differences: Floats, span: float = 1.0) -> tuple[float, float]:
    """Interval of the mean of problems' changes, of which few may be large.

        d +- t(n - 1) s / sqrt(n),   s^2 = (sum (d_i - d)^2 + 2 span^2) / n

    Student's t as if two problems more had changed fully, as Agresti & Coull (1998) add two
    successes and two failures to a share. However often each problem is played, a kind of problem
    that is not among them stays unseen: what is added does not shrink with the episodes.

    Args:
        differences: (n,) each problem's change of its mean.
        span: What one episode can change: 1 of a share. The interval ends at a change of as much,
            or of the most that was seen.
    """
    count = len(differences)
    least, most = min(-span, float(differences.min())), max(span, float(differences.max()))
    if count < 2:
        return least, most
    mean = float(differences.mean())
    variance = (float(((differences - mean) ** 2).sum()) + 2 * span**2) / count
    reach = float(special.stdtrit(count - 1, (1 + LEVEL) / 2)) * (variance / count) ** 0.5
    return max(mean - reach, least), min(mean + reach, most)


def share_interval(shares: Floats) -> tuple[float, float]:
    """Interval of the mean of problems' shares, such as pass@k.

    Clopper and Pearson's with the effective number of trials (Korn & Graubard 1998): how many
    binomial trials of the same share have the variance that the problems show, which is again
    widened by half of one problem more, however often each was played.

    Args:
        shares: (n,) in [0, 1].
    """
    count = len(shares)
    if count < 2:
        return 0.0, 1.0
    mean = float(shares.mean())
    trials = float(count)
    if 0 < mean < 1:
        variance = (float(((shares - mean) ** 2).sum()) + 0.5) / count
        quantile = (1 + LEVEL) / 2
        few = (special.ndtri(quantile) / special.stdtrit(count - 1, quantile)) ** 2
        trials = mean * (1 - mean) / (variance / count) * float(few)
    right, wrong, tail = mean * trials, (1 - mean) * trials, (1 - LEVEL) / 2
    low = float(special.betaincinv(right, wrong + 1, tail)) if right > 0 else 0.0
    high = float(special.betaincinv(right + 1, wrong, 1 - tail)) if wrong > 0 else 1.0
    return low, high
