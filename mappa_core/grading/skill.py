"""What a measurement is worth, so that tasks with different metrics can be averaged.

    constant    the best value that one and the same prediction for every row gets on this task
    charged     the measured value; for an episode without a valid submission, the constant's
    skill       (charged - constant) / (perfect - constant), cut to [0, 1]
    success     a valid submission that is better than the constant

The constant is chosen with the hidden answers in hand, so it is a little better than can be
done without looking at the features: beating it proves that they were used. See
docs/evaluation.md.
"""

from collections.abc import Iterable

import numpy as np

from mappa_core.grading.metrics import Metric, Table, positive_label

_CANDIDATES = 101
"""Quantiles of the true values that are tried as constants."""


def constant_value(metric: Metric, truth: Table) -> float:
    """The best that a constant prediction gets."""
    if metric.uninformed is not None:
        return metric.uninformed
    if metric.wants == "probabilities":
        return metric.measure(truth, _shares(truth))
    columns = [truth[:, [k]] for k in range(truth.shape[1])]
    return float(np.mean([_best_of_column(metric, column) for column in columns]))


def skill(metric: Metric, value: float | None, constant: float) -> float:
    """0 for a constant prediction, a worse one or none (None); 1 for a perfect one."""
    if value is None:
        return 0.0
    room = metric.perfect - constant
    if room == 0:
        return float(value == metric.perfect)
    return float(np.clip((value - constant) / room, 0.0, 1.0))


def _best_of_column(metric: Metric, column: Table) -> float:
    values: list[float] = []
    for candidate in _candidates(metric, column):
        kind = object if isinstance(candidate, str) else np.float64
        values.append(metric.measure(column, np.full(column.shape, candidate, dtype=kind)))
    best = max if metric.greater_is_better else min
    return best(values, default=float("nan"))


def _candidates(metric: Metric, column: Table) -> Iterable[str | float]:
    if metric.wants in ("labels", "text", "ranking"):
        names, counts = np.unique(column, return_counts=True)
        frequent = [str(names[k]) for k in np.argsort(-counts, kind="stable")[:_CANDIDATES]]
        if metric.wants == "ranking":
            return [" ".join(frequent[:3])]
        return frequent
    values = [column.mean(), *np.quantile(column, np.linspace(0, 1, _CANDIDATES))]
    if metric.lowest == 0.0:
        values.append(np.expm1(np.log1p(column).mean()))
    return [float(value) for value in values]


def _shares(truth: Table) -> Table:
    """Each row the overall shares of the classes."""
    if truth.shape[1] == 1:
        positive = truth[:, 0] == positive_label(truth[:, 0])
        return np.full(truth.shape, positive.mean(), dtype=np.float64)
    return np.tile(truth.mean(axis=0), (len(truth), 1))
