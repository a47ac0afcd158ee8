"""The regression against hand-worked numbers, statsmodels and a brute-force CR2."""

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import linalg

from mappa_core.audit.frame import Floats, Ints
from mappa_core.audit.statistics.regression import (
    cluster_sums,
    clustered_mean,
    contrast,
    estimable,
    fit,
)


def made_up(seed: int = 0, clusters: int = 9) -> tuple[Floats, Floats, Ints]:
    """A regression with a treatment per cluster and a covariate, in unequal clusters."""
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, clusters, 60))
    groups[:clusters] = np.arange(clusters)
    x = np.column_stack([np.ones(60), (groups % 2).astype(float), rng.normal(size=60)])
    y = x @ [5.0, 0.5, 0.3] + rng.normal(size=clusters)[groups] + rng.normal(size=60)
    return x, y, groups


def brute_force(x: Floats, y: Floats, groups: Ints, c: Floats) -> tuple[float, float]:
    """CR2 standard error and Satterthwaite degrees of freedom from the N x N definitions."""
    bread = np.linalg.inv(x.T @ x)
    hat = x @ bread @ x.T
    residual = y - hat @ y
    left, meat = np.eye(len(y)) - hat, 0.0
    columns = []
    for group in np.unique(groups):
        rows = groups == group
        root = np.real(
            linalg.fractional_matrix_power(np.eye(rows.sum()) - hat[rows][:, rows], -0.5)
        )
        direction = root @ x[rows] @ bread @ c
        meat += (direction @ residual[rows]) ** 2
        columns.append(left[:, rows] @ direction)
    inner = np.array(columns) @ np.array(columns).T
    values = np.linalg.eigvalsh(inner)
    return float(np.sqrt(meat)), float(values.sum() ** 2 / (values**2).sum())


def test_coefficients_are_those_of_statsmodels() -> None:
    x, y, groups = made_up()
    expected = sm.OLS(y, x).fit(cov_type="cluster", cov_kwds={"groups": groups})
    fitted = fit(cluster_sums(x, y, groups))
    assert fitted.coefficients == pytest.approx(expected.params)
    # CR1, which statsmodels has, is narrower than CR2 with as few clusters.
    treated = contrast(fitted, np.array([0.0, 1.0, 0.0]))
    assert expected.bse[1] < treated.standard_error < 1.5 * expected.bse[1]


@pytest.mark.parametrize("c", [[0, 1, 0], [0, 0, 1], [1, 0.5, -2]])
def test_cr2_is_its_definition(c: list[float]) -> None:
    x, y, groups = made_up(3)
    error, freedom = brute_force(x, y, groups, np.array(c))
    found = contrast(fit(cluster_sums(x, y, groups)), np.array(c, dtype=float))
    assert found.standard_error == pytest.approx(error)
    assert found.degrees_of_freedom == pytest.approx(freedom)


def test_two_means_of_lone_actions_are_welchs_test() -> None:
    """With one action per cluster and no covariate, CR2 is the unequal-variances t-test."""
    a, b = np.array([1.0, 2.0, 4.0, 5.0]), np.array([6.0, 7.0, 11.0])
    y, member = np.concatenate([a, b]), np.repeat([0.0, 1.0], [4, 3])
    x = np.column_stack([np.ones(7), member])
    found = contrast(fit(cluster_sums(x, y, np.arange(7))), np.array([0.0, 1.0]))
    # Means 3 and 8; variances 10/3 and 7; error sqrt(10/12 + 7/3).
    assert found.value == pytest.approx(5.0)
    assert found.standard_error == pytest.approx((10 / 12 + 7 / 3) ** 0.5)


def test_row_order_and_chunking_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, groups = made_up()
    order = np.random.default_rng(1).permutation(len(y))
    whole, mixed = cluster_sums(x, y, groups), cluster_sums(x[order], y[order], groups[order])
    assert mixed.xx == pytest.approx(whole.xx)
    monkeypatch.setattr("mappa_core.audit.statistics.regression.AT_ONCE", 0)
    assert cluster_sums(x, y, groups).xx == pytest.approx(whole.xx)
    assert cluster_sums(x, y, groups).xy == pytest.approx(whole.xy)


def test_redundant_columns_are_not_told_apart() -> None:
    x, y, groups = made_up()
    doubled = np.column_stack([x, x[:, 1], np.zeros(len(y))])
    fitted = fit(cluster_sums(doubled, y, groups))
    assert fitted.used.tolist() == [0, 1, 2]
    assert not estimable(fitted, np.array([0.0, 0.0, 0.0, 1.0, 0.0]))
    with pytest.raises(ValueError, match="cannot tell"):
        contrast(fitted, np.array([0.0, 0.0, 0.0, 0.0, 1.0]))


@pytest.mark.parametrize("seed", range(20))
def test_columns_that_are_nearly_alike_are_one(seed: int) -> None:
    """Where nearly all work is right, skills differ by little, and rounding hides what repeats."""
    x, y, groups = made_up(seed)
    noise = np.random.default_rng([seed, 1]).normal(size=60)
    near = np.column_stack([x, x[:, 2] + 1e-4 * noise, 100 * noise])
    fitted = fit(cluster_sums(near, y, groups))
    assert list(fitted.used) == [0, 1, 2, 4]
    other = fit(cluster_sums(near[:, fitted.used], y, groups))
    for each in (1, 2):
        mine, theirs = (contrast(one, np.eye(k)[each]) for one, k in ((fitted, 5), (other, 4)))
        assert mine == theirs


def test_a_type_of_one_problem_proves_nothing() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(6), 10)
    x = np.column_stack([np.ones(60), (groups == 5).astype(float)])
    y = 5 + 4 * x[:, 1] + rng.normal(size=60)
    found = contrast(fit(cluster_sums(x, y, groups)), np.array([0.0, 1.0]))
    assert found.p_value == 1.0
    assert found.standard_error == float("inf")


@pytest.mark.parametrize("value", [1.0, -1.0, 0.1, 2.7])
@pytest.mark.parametrize("count", [2, 3, 7])
def test_a_spread_that_never_showed_proves_nothing(value: float, count: int) -> None:
    """Two pairs that differ by the same point by chance are no coach without noise."""
    found = clustered_mean(np.full(count, value), np.arange(count))
    assert found.value == pytest.approx(value)
    assert (found.standard_error, found.p_value) == (np.inf, 1.0)


def test_one_cluster_is_refused() -> None:
    with pytest.raises(ValueError, match="two clusters"):
        fit(cluster_sums(np.ones((3, 1)), np.arange(3.0), np.zeros(3, dtype=np.int64)))
