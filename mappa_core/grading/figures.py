"""Figures that are comparable over tasks of one kind, whatever metric each task is scored by.

    classification    accuracy, balanced_accuracy, f1, roc_auc
    regression        rmse_over_sd, mae_over_mad, r2, rmse_percent_of_range
    extraction        jaccard

Rubrics cap scores by them, and `mappa evaluate` averages them. A label is read from whatever the
metric wants: a score or a probability above 0.5 is the positive label, of one column for each class
the largest, of a ranking the first, of a number the nearest whole one. With several targets a
figure is the mean over their columns.

Each has beside it what a constant prediction gets: the most frequent label, no order, the mean, the
median. That is the charge for a submission that cannot be measured.
"""

from collections import Counter
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mappa_core.core.records.episodes import Figure
from mappa_core.grading.metrics import METRICS, Column, Metric, Table, positive_label

Kind: TypeAlias = Literal["classification", "regression", "extraction"]
_ORDINAL = frozenset({"quadratic_weighted_kappa", "normalized_gini"})
"""Metrics of classes that are predicted as numbers: ratings, and how likely the class 1 is."""


def kind_of(metric: Metric) -> Kind:
    """The kind of task that is scored by `metric`."""
    if metric.wants == "text":
        return "extraction"
    numbers = metric.wants == "numbers" and metric.name not in _ORDINAL
    return "regression" if numbers else "classification"


def figures(metric: Metric, truth: Table, predicted: Table | None) -> tuple[Figure, ...]:
    """The figures of one submission.

    Args:
        metric: The task's own.
        truth: Shape (N, K), as the metric has it.
        predicted: Shape (N, K), as the metric wants it; None where nothing could be measured.
    """
    kind = kind_of(metric)
    if kind == "extraction":
        return (_jaccard(truth, predicted),)
    if kind == "regression":
        return _mean_over_columns([_regression(*each) for each in _columns(truth, predicted)])
    true = _as_labels(metric, truth)
    labels = None if predicted is None else _as_labels(metric, predicted, truth)
    orders = predicted if _orders_rows(metric, truth) else None
    found = [
        _classification(true[:, k], _column(labels, k), _column(orders, k))
        for k in range(true.shape[1])
    ]
    return _mean_over_columns(found)


def _orders_rows(metric: Metric, truth: Table) -> bool:
    """Whether each column of a prediction says how likely the greater label is."""
    if metric.wants == "probabilities":
        return truth.shape[1] == 1
    return metric.wants == "scores" or metric.name == "normalized_gini"


def _columns(truth: Table, predicted: Table | None) -> list[tuple[Column, Column | None]]:
    return [(truth[:, k], _column(predicted, k)) for k in range(truth.shape[1])]


def _column(table: Table | None, k: int) -> Column | None:
    return None if table is None else table[:, k]


def _mean_over_columns(columns: list[tuple[Figure, ...]]) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            name=same[0].name,
            value=_mean([figure.value for figure in same if figure.value is not None]),
            constant=float(np.mean([figure.constant for figure in same])),
        )
        for same in zip(*columns, strict=True)
    )


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values and np.isfinite(values).all() else None


def _as_labels(metric: Metric, table: Table, truth: Table | None = None) -> Table:
    """The labels that a table says: of the truth, or of what was predicted of `truth`."""
    if metric.wants == "probabilities" and table.shape[1] > 1:
        return table.argmax(axis=1).astype(str).astype(object)[:, None]
    if metric.name == "quadratic_weighted_kappa":
        return np.rint(table)
    if metric.wants == "ranking":
        firsts = [str(cell).split()[:1] for cell in table[:, 0]]
        return np.array([first[0] if first else "" for first in firsts], dtype=object)[:, None]
    if metric.wants == "labels" or truth is None:
        return table
    likely = np.asarray(table, dtype=np.float64) > 0.5
    columns = [_two_labels(truth[:, k], likely[:, k]) for k in range(truth.shape[1])]
    return np.column_stack(columns)


def _two_labels(truth: Column, positive: NDArray[np.bool_]) -> Column:
    """The greater of the true labels where `positive`, elsewhere the most frequent other one."""
    greater = positive_label(truth)
    others = Counter(truth[truth != greater]).most_common(1)
    lesser = others[0][0] if others else ""
    return np.where(positive, np.array(greater, dtype=object), np.array(lesser, dtype=object))


def _classification(
    truth: Column, labels: Column | None, order: Column | None
) -> tuple[Figure, ...]:
    shares = np.array(list(Counter(truth).values())) / len(truth)
    constants = {
        "accuracy": float(shares.max()),
        "balanced_accuracy": 1 / len(shares),
        "f1": _f1_of_constant(truth, shares),
        "roc_auc": 0.5,
    }
    found: dict[str, float] = {}
    if labels is not None:
        for name in ("accuracy", "balanced_accuracy"):
            found[name] = METRICS[name].measure(truth[:, None], labels[:, None])
        found["f1"] = _f1(truth, labels)
        found["roc_auc"] = _auc(truth, labels, order)
    return _figures(found, constants)


def _figures(found: dict[str, float], constants: dict[str, float]) -> tuple[Figure, ...]:
    return tuple(
        Figure(name=name, value=found.get(name), constant=constant)
        for name, constant in constants.items()
    )


def _f1(truth: Column, labels: Column) -> float:
    """Of the positive one of two labels; of more, the mean weighted by how frequent each is."""
    rows = Counter(truth)
    if len(rows) == 2:
        return METRICS["f1"].measure(truth[:, None], labels[:, None])
    right, either = Counter(truth[truth == labels]), rows + Counter(labels)
    return sum(rows[one] * 2 * right[one] / either[one] for one in rows) / len(truth)


def _f1_of_constant(truth: Column, shares: NDArray[np.float64]) -> float:
    """What the better constant label gets: of two, always the positive one."""
    if len(shares) == 2:
        positive = float(np.mean(truth == positive_label(truth)))
        return 2 * positive / (1 + positive)
    return float(np.max(shares * 2 * shares / (1 + shares)))


def _auc(truth: Column, labels: Column, order: Column | None) -> float:
    """Area under the curve, one label against the rest, mean over labels.

    Without an order of the rows a label is one point of the curve, and the area is the mean of the
    rates at which it is said where it is right and not said where it is not.
    """
    names = Counter(truth)
    if len(names) < 2:
        return float("nan")
    if order is not None:
        return METRICS["roc_auc"].measure(truth[:, None], order[:, None])
    areas = [
        (np.mean(labels[truth == one] == one) + np.mean(labels[truth != one] != one)) / 2
        for one in names
    ]
    return float(np.mean(areas))


def _regression(truth: Column, predicted: Column | None) -> tuple[Figure, ...]:
    spread, width = float(truth.std()), float(np.ptp(truth))
    deviation = float(np.mean(np.abs(truth - np.median(truth))))
    constants = {
        "rmse_over_sd": 1.0,
        "mae_over_mad": 1.0,
        "r2": 0.0,
        "rmse_percent_of_range": 100 * spread / width if width else 0.0,
    }
    # Equal labels have no unit to measure in; tasks with such a column are refused.
    if predicted is None or not width or not deviation:
        return _figures({}, constants)
    with np.errstate(over="ignore"):
        rmse = float(np.sqrt(np.mean((truth - predicted) ** 2)))
    found = {
        "rmse_over_sd": rmse / spread,
        "mae_over_mad": float(np.mean(np.abs(truth - predicted))) / deviation,
        "r2": 1 - (rmse / spread) ** 2,
        "rmse_percent_of_range": 100 * rmse / width,
    }
    return _figures(found, constants)


def _jaccard(truth: Table, predicted: Table | None) -> Figure:
    metric = METRICS["jaccard"]
    frequent = Counter(truth[:, 0]).most_common(1)[0][0]
    constant = metric.measure(truth, np.full(truth.shape, frequent, dtype=object))
    value = None if predicted is None else metric.measure(truth, predicted)
    return Figure(name="jaccard", value=value, constant=constant)
