"""Least squares with intervals that hold where actions come in few clusters.

Actions on one problem are alike, so the interval's unit is the problem. The plain sandwich is too
narrow below about 50 clusters. CR2 corrects each cluster's residuals for its own leverage
(Bell & McCaffrey 2002), and the t distribution gets the Satterthwaite degrees of freedom of the
contrast at hand (Imbens & Kolesár 2016, eq. 9; Pustejovsky & Tipton 2018). `selftest` measures
the level this reaches.

Everything is a function of each cluster's sums X'X and X'y, so a million actions cost one pass:

    A_g = (I - X_g M X_g')^(-1/2) = I + Z Q S Q' Z',  M = F F', Z = X_g F, Z'Z = Q diag(l) Q'
    S = ((1 - l)^(-1/2) - 1) / l
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import linalg, special

from mappa_core.audit.frame import Floats, Ints

AT_ONCE = 2_000_000
"""Products held at once; more are summed up cluster by cluster."""
OWN_SHARE = 1e-6
"""Of a column's square, that others must leave unexplained: rounding is far below."""
LEAST_ERROR = 1e-9
"""Of an estimate, in the outcome's unit: what is below is rounding, and no spread was seen."""
FULL_LEVERAGE = 1e-8
"""A direction only one cluster speaks about tells nothing about the spread between clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSums:
    """Sufficient statistics of a regression, by cluster."""

    xx: Floats
    """(G, k, k): X'X of each of G clusters."""
    xy: Floats
    """(G, k)."""
    counts: Ints
    """(G,) rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One effect, in the outcome's unit, with its uncertainty."""

    value: float
    standard_error: float
    degrees_of_freedom: float
    p_value: float
    """Two-sided, of no effect."""

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval."""
        freedom = max(self.degrees_of_freedom, MIN_DF)
        reach = self.standard_error * float(special.stdtrit(freedom, (1 + level) / 2))
        return self.value - reach, self.value + reach


MIN_DF = 1.0
"""Fewer degrees of freedom than one observation of the spread: as wide as a Cauchy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A least-squares fit and what its intervals need; k columns, G clusters."""

    coefficients: Floats
    """(k,); 0 where a column repeats what the others say."""
    used: Ints
    """Columns that were not redundant."""
    bread: Floats
    """(k', k'): (X'X)^-1 over the used columns."""
    covariance: Floats
    """(k', k'), CR2."""
    sums: ClusterSums
    root: Floats
    """(k', k') F of bread = F F'."""
    directions: Floats
    """(G, k', k') eigenvectors Q."""
    leverages: Floats
    """(G, k') eigenvalues l in [0, 1]."""


def cluster_sums(x: Floats, y: Floats, clusters: Ints) -> ClusterSums:
    """Sum up X'X and X'y by cluster.

    Args:
        x: (N, k).
        y: (N,).
        clusters: (N,) codes, in any order.
    """
    order = np.argsort(clusters, kind="stable")
    x, y = x[order], y[order]
    _, starts = np.unique(clusters[order], return_index=True)
    ends = [*starts[1:], len(y)]
    pairs = list(zip(starts, ends, strict=True))
    if len(y) * x.shape[1] ** 2 <= AT_ONCE:
        products = x[:, :, None] * x[:, None, :]
        return ClusterSums(
            xx=np.add.reduceat(products, starts),
            xy=np.add.reduceat(x * y[:, None], starts),
            counts=np.diff([*starts, len(y)]).astype(np.int64),
        )
    return ClusterSums(
        xx=np.stack([x[a:b].T @ x[a:b] for a, b in pairs]),
        xy=np.stack([x[a:b].T @ y[a:b] for a, b in pairs]),
        counts=np.diff([*starts, len(y)]).astype(np.int64),
    )


def fit(sums: ClusterSums) -> Fit:
    """Least squares with CR2 covariance.

    Raises:
        ValueError: Fewer than two clusters.
    """
    if len(sums.counts) < 2:
        raise ValueError("an interval needs at least two clusters")
    used = _independent(sums.xx.sum(axis=0))
    kept = ClusterSums(xx=sums.xx[:, used[:, None], used], xy=sums.xy[:, used], counts=sums.counts)
    root = _inverse_root(kept.xx.sum(axis=0))
    bread = root @ root.T
    beta = bread @ kept.xy.sum(axis=0)
    leverages, directions = np.linalg.eigh(root.T @ kept.xx @ root)
    leverages = leverages.clip(0.0, 1.0)
    residual = kept.xy - kept.xx @ beta
    corrected = _corrected(kept.xx @ root, directions, _half(leverages), residual, residual @ root)
    half = corrected @ bread
    coefficients = np.zeros(sums.xy.shape[1])
    coefficients[used] = beta
    return Fit(
        coefficients=coefficients,
        used=used,
        bread=bread,
        covariance=half.T @ half,
        sums=kept,
        root=root,
        directions=directions,
        leverages=leverages,
    )


def contrast(fitted: Fit, weights: Floats) -> Estimate:
    """The effect `weights @ coefficients`.

    Args:
        fitted: Of `fit`.
        weights: (k,); must not touch a column that the data cannot tell from the others.

    Raises:
        ValueError: It touches such a column.
    """
    if np.any(np.delete(weights, fitted.used)):
        raise ValueError("the data cannot tell this effect from the others")
    kept = weights[fitted.used]
    value = float(kept @ fitted.coefficients[fitted.used])
    error = float(np.sqrt(max(kept @ fitted.covariance @ kept, 0.0)))
    freedom = _satterthwaite(fitted, kept)
    # A spread that was never observed (every cluster alike, or alone) proves nothing.
    known = error > LEAST_ERROR and freedom > 0 and not _rests_on_one_cluster(fitted, kept)
    error = error if known else float("inf")
    return Estimate(
        value=value,
        standard_error=error,
        degrees_of_freedom=freedom,
        p_value=p_value(value, error, freedom),
    )


def clustered_mean(values: Floats, clusters: Ints) -> Estimate:
    """The mean of (N,) values; of one cluster alone its error is not known."""
    if len(np.unique(clusters)) < 2:
        value = float(values.mean())
        return Estimate(value=value, standard_error=np.inf, degrees_of_freedom=0.0, p_value=1.0)
    return contrast(fit(cluster_sums(np.ones((len(values), 1)), values, clusters)), np.ones(1))


def p_value(value: float, error: float, freedom: float) -> float:
    """Two-sided, of no effect; 1 where the error is not known."""
    if not np.isfinite(error):
        return 1.0
    return float(2 * special.stdtr(max(freedom, MIN_DF), -abs(value) / error))


def estimable(fitted: Fit, weights: Floats) -> bool:
    """Whether the data can tell the contrast at all."""
    return not np.any(np.delete(weights, fitted.used)) and bool(np.any(weights))


def row_weights(fitted: Fit, weights: Floats, columns: Sequence[str]) -> Mapping[str, float]:
    """By column, what each row's outcome is multiplied with so that their sum is the contrast.

    Args:
        fitted: Of `fit`.
        weights: (k,), of the contrast.
        columns: The regression's columns in SQL.
    """
    used = [columns[int(index)] for index in fitted.used]
    return dict(zip(used, (fitted.bread @ weights[fitted.used]).tolist(), strict=True))


def spread_weights(fitted: Fit, weights: Floats) -> Floats:
    """(G, k') by cluster: what a row's columns are multiplied with, A_g X_g M c being the rows.

    The CR2 variance of a contrast is the sum over clusters of (rows' products @ residuals)^2.
    """
    direction = fitted.bread @ weights[fitted.used]
    rotated = (fitted.sums.xx @ direction) @ fitted.root
    along = np.einsum("gkj,gk->gj", fitted.directions, rotated) * _half(fitted.leverages)
    return direction + np.einsum("gkj,gj->gk", fitted.directions, along) @ fitted.root.T


def corrected_residuals(fitted: Fit, x: Floats, residuals: Floats, clusters: Ints) -> Floats:
    """(N,) A_g e_g: residuals as large as the errors behind them, for each cluster's leverage.

    Args:
        fitted: Of `fit`.
        x: (N, k), as it was fitted.
        residuals: (N,).
        clusters: (N,) codes from 0.
    """
    used = x[:, fitted.used]
    sums = np.zeros((len(fitted.leverages), len(fitted.used)))
    np.add.at(sums, clusters, used * residuals[:, None])
    along = np.einsum("gkj,gk->gj", fitted.directions, sums @ fitted.root)
    along *= _half(fitted.leverages)
    back = np.einsum("gkj,gj->gk", fitted.directions, along) @ fitted.root.T
    return residuals + (used * back[clusters]).sum(axis=1)


def _rests_on_one_cluster(fitted: Fit, weights: Floats) -> bool:
    """Whether part of the contrast is known from a single cluster, e.g. a type of one problem."""
    rotated = (fitted.sums.xx @ (fitted.bread @ weights)) @ fitted.root
    along = np.einsum("gkj,gk->gj", fitted.directions, rotated) ** 2
    alone = along[fitted.leverages > 1 - FULL_LEVERAGE].sum()
    return bool(alone > FULL_LEVERAGE * along.sum())


def _satterthwaite(fitted: Fit, weights: Floats) -> float:
    """Degrees of freedom of the contrast's variance: (tr G)^2 / tr(G G).

    G_ij = [i = j] d_i - h_i' M h_j is the covariance of the clusters' contributions when the rows
    are independent with equal variance (Bell & McCaffrey's working model).
    """
    projected = fitted.sums.xx @ (fitted.bread @ weights)
    rotated = projected @ fitted.root
    through = fitted.sums.xx @ fitted.root
    own = _corrected(through, fitted.directions, _half(fitted.leverages), projected, rotated)
    along = np.einsum("gkj,gk->gj", fitted.directions, rotated)
    squares = projected @ fitted.bread @ weights + (_whole(fitted.leverages) * along**2).sum(axis=1)
    half = own @ fitted.root
    shared = (half**2).sum(axis=1)
    outer = half.T @ half
    total = float(squares.sum() - shared.sum())
    spread = float((squares**2).sum() - 2 * (squares * shared).sum() + (outer**2).sum())
    return total**2 / spread if spread > 0 else 0.0


def _corrected(
    through: Floats, directions: Floats, scale: Floats, plain: Floats, rotated: Floats
) -> Floats:
    """X_g' A_g v for each cluster, from X_g' v (`plain`) and Z_g' v (`rotated`); (G, k')."""
    along = np.einsum("gkj,gk->gj", directions, rotated) * scale
    return plain + np.einsum("gak,gkj,gj->ga", through, directions, along, optimize=True)


def _half(leverages: Floats) -> Floats:
    """S of the module's formula; its limit 1/2 at 0, and the pseudo-inverse at 1."""
    free = np.maximum(1 - leverages, FULL_LEVERAGE)
    root = np.where(1 - leverages > FULL_LEVERAGE, free**-0.5, 0.0)
    safe = np.maximum(leverages, 1e-12)
    return np.where(leverages > 1e-9, (root - 1) / safe, 0.5)


def _whole(leverages: Floats) -> Floats:
    """The same for A_g squared: ((1 - l)^-1 - 1) / l = 1 / (1 - l)."""
    free = np.maximum(1 - leverages, FULL_LEVERAGE)
    return np.where(1 - leverages > FULL_LEVERAGE, 1 / free, -1.0)


def _inverse_root(xx: Floats) -> Floats:
    """F with F F' = (X'X)^-1, of columns of one length: nearly alike ones leave little over."""
    scale = np.sqrt(np.diag(xx))
    lower = np.linalg.cholesky(xx / scale[:, None] / scale)
    inverse = linalg.solve_triangular(lower, np.eye(len(xx)), lower=True)
    return np.asarray(inverse / scale, dtype=np.float64).T


def _independent(xx: Floats) -> Ints:
    """Columns that add something to the ones before them (Gram-Schmidt on X'X, scaled)."""
    scale = np.sqrt(np.diag(xx))
    usable = scale > 0
    left = xx / np.where(usable, scale, 1)[:, None] / np.where(usable, scale, 1)
    kept: list[int] = []
    for column in range(len(xx)):
        pivot = left[column, column]
        if usable[column] and pivot > OWN_SHARE:
            kept.append(column)
            left = left - np.outer(left[:, column], left[column]) / pivot
    return np.array(kept, dtype=np.int64)
