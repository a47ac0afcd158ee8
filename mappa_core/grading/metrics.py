"""The tasks' own metrics: one function each, checked against scikit-learn or worked by hand.

Truth and predictions are arrays of shape (N, K), K target columns; where a metric is of one
column, several are averaged, as Kaggle's multi-target tasks do. What a prediction has to be is
`wants`: labels and texts are compared as strings, everything else as finite numbers. Where the
prediction is a score or one probability, the truth is still labels.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn import metrics as sk

from mappa_core.core.text import jaccard_similarity

Column: TypeAlias = NDArray[Any]
"""Shape (N,)."""
Table: TypeAlias = NDArray[Any]
"""Shape (N, K)."""
Wants: TypeAlias = Literal["labels", "numbers", "scores", "probabilities", "ranking", "text"]
"""`scores` order the rows by how likely the positive (greater) label is; `ranking` is up to three
labels with blanks between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """How one kind of task is measured."""

    name: str
    measure: Callable[[Table, Table], float]
    perfect: float
    wants: Wants
    greater_is_better: bool
    uninformed: float | None = None
    """What any constant prediction gets, where the formula itself is undefined for one."""
    lowest: float = -np.inf
    """Least value of a truth or a prediction that the formula takes."""

    def better(self, one: float, other: float) -> bool:
        """Whether `one` is better than `other`."""
        return one > other if self.greater_is_better else one < other


def _by_column(measure: Callable[[Column, Column], float]) -> Callable[[Table, Table], float]:
    def mean(truth: Table, predicted: Table) -> float:
        columns = range(truth.shape[1])
        return float(np.mean([measure(truth[:, k], predicted[:, k]) for k in columns]))

    return mean


def positive_label(truth: Column) -> object:
    """The label that counts as positive: the greater of two, so 1 of 0 and 1."""
    return np.unique(truth)[-1]


def _f1(truth: Column, predicted: Column) -> float:
    """Harmonic mean of precision and recall; 0 where the label was never predicted."""
    label = positive_label(truth)
    both = np.count_nonzero((truth == label) & (predicted == label))
    either = np.count_nonzero(truth == label) + np.count_nonzero(predicted == label)
    return 2 * both / either if either else 0.0


def _f1_macro(truth: Column, predicted: Column) -> float:
    """Mean over every label that is true or predicted, however many they are."""
    both, either = Counter(truth[truth == predicted]), Counter(truth) + Counter(predicted)
    return float(np.mean([2 * both[label] / count for label, count in either.items()]))


def _accuracy(truth: Column, predicted: Column) -> float:
    return float(np.mean(truth == predicted))


def _balanced_accuracy(truth: Column, predicted: Column) -> float:
    """Mean recall over the labels that occur in the truth."""
    right, rows = Counter(truth[truth == predicted]), Counter(truth)
    return float(np.mean([right[label] / count for label, count in rows.items()]))


def _roc_auc(truth: Column, predicted: Column) -> float:
    return float(sk.roc_auc_score(truth == positive_label(truth), predicted))


def _log_loss(truth: Table, predicted: Table) -> float:
    """One column is the probability of the positive label; several are a class each.

    Probabilities are clipped by float64's epsilon and each row is scaled to sum 1, as scikit-learn
    does and Kaggle did.
    """
    if truth.shape[1] == 1:
        return float(sk.log_loss(truth[:, 0] == positive_label(truth[:, 0]), predicted[:, 0]))
    tiny = np.finfo(np.float64).eps
    shares = np.clip(predicted, tiny, 1 - tiny)
    shares = shares / shares.sum(axis=1, keepdims=True)
    return float(-np.mean(np.sum(truth * np.log(shares), axis=1)))


def _rmse(truth: Column, predicted: Column) -> float:
    return float(sk.root_mean_squared_error(truth, predicted))


def _percent_of_range(truth: Column, predicted: Column) -> float:
    """Root mean squared error in per cent of the true values' range."""
    spread = float(truth.max() - truth.min())
    return 100 * _rmse(truth, predicted) / spread if spread else float("nan")


def _smape(truth: Column, predicted: Column) -> float:
    """In per cent, 0 to 200; a row where both are 0 counts 0 (Kaggle's form)."""
    size = np.abs(truth) + np.abs(predicted)
    parts = np.divide(2 * np.abs(predicted - truth), size, out=np.zeros_like(size), where=size > 0)
    return 100 * float(parts.mean())


def _weighted_kappa(truth: Column, predicted: Column) -> float:
    """Cohen's kappa with quadratic weights over whole ratings; rounds what lies between.

    1 - (mean squared difference) / (the same by chance), which needs no matrix of ratings: that
    would be as large as the wildest of them.
    """
    true, rated = np.rint(truth), np.rint(predicted)
    if np.array_equal(true, rated):
        return 1.0
    if np.ptp(true) == 0 or np.ptp(rated) == 0:
        return 0.0
    by_chance = true.var() + rated.var() + (true.mean() - rated.mean()) ** 2
    return float(2 * np.mean((true - true.mean()) * (rated - rated.mean())) / by_chance)


def _map_at_3(truth: Column, predicted: Column) -> float:
    """Mean over rows of 1 / rank of the true label among the first three; 0 if it is not there."""
    return float(np.mean([_reciprocal_rank(t, p) for t, p in zip(truth, predicted, strict=True)]))


def _reciprocal_rank(label: str, ranking: str) -> float:
    first = list(dict.fromkeys(str(ranking).split()))[:3]
    return 1 / (first.index(str(label)) + 1) if str(label) in first else 0.0


def _normalised_gini(truth: Column, predicted: Column) -> float:
    """Gini coefficient over that of a perfect order; tied predictions share their mean truth."""
    return _gini(truth, predicted) / _gini(truth, truth)


def _gini(truth: Column, order_by: Column) -> float:
    values, groups = np.unique(-order_by, return_inverse=True)
    sums = np.bincount(groups, weights=truth, minlength=len(values))
    counts = np.bincount(groups, minlength=len(values))
    ordered = np.repeat(sums / counts, counts)
    rows = len(truth)
    return float((np.cumsum(ordered) / ordered.sum()).sum() - (rows + 1) / 2) / rows


def _pearson(truth: Column, predicted: Column) -> float:
    if np.ptp(truth) == 0 or np.ptp(predicted) == 0:
        return 0.0
    return float(np.corrcoef(truth, predicted)[0, 1])


def _spearman(truth: Column, predicted: Column) -> float:
    """Pearson's coefficient of the ranks, ties sharing their mean rank."""
    return _pearson(rankdata(truth), rankdata(predicted))


def _jaccard(truth: Column, predicted: Column) -> float:
    """Mean over rows of shared words over all words, case aside."""
    words = ([set(str(text).lower().split()) for text in texts] for texts in (truth, predicted))
    return float(np.mean([jaccard_similarity(*pair) for pair in zip(*words, strict=True)]))


_Loss = partial(Metric, perfect=0.0, wants="numbers", greater_is_better=False)
_Share = partial(Metric, perfect=1.0, wants="labels", greater_is_better=True)

_ALL = (
    _Share(name="accuracy", measure=_by_column(_accuracy)),
    _Share(name="balanced_accuracy", measure=_by_column(_balanced_accuracy)),
    _Share(name="f1", measure=_by_column(_f1)),
    # With one label per row every wrong row is one false positive and one false negative.
    _Share(name="f1_micro", measure=_by_column(_accuracy)),
    _Share(name="f1_macro", measure=_by_column(_f1_macro)),
    _Share(name="roc_auc", measure=_by_column(_roc_auc), wants="scores", uninformed=0.5),
    _Loss(name="log_loss", measure=_log_loss, wants="probabilities", lowest=0.0),
    _Loss(name="rmse", measure=_by_column(_rmse)),
    _Loss(
        name="rmsle",
        measure=_by_column(lambda t, p: _rmse(np.log1p(t), np.log1p(p))),
        lowest=0.0,
    ),
    _Loss(name="mae", measure=_by_column(lambda t, p: float(np.mean(np.abs(t - p))))),
    _Loss(name="medae", measure=_by_column(lambda t, p: float(np.median(np.abs(t - p))))),
    _Loss(name="mcrmse", measure=_by_column(_rmse)),
    _Loss(name="smape", measure=_by_column(_smape)),
    _Loss(name="percent_of_range", measure=_by_column(_percent_of_range)),
    _Share(name="r2", measure=_by_column(lambda t, p: float(sk.r2_score(t, p))), wants="numbers"),
    _Share(
        name="quadratic_weighted_kappa",
        measure=_by_column(_weighted_kappa),
        wants="numbers",
        uninformed=0.0,
    ),
    _Share(name="map_at_3", measure=_by_column(_map_at_3), wants="ranking"),
    _Share(
        name="normalized_gini",
        measure=_by_column(_normalised_gini),
        wants="numbers",
        uninformed=0.0,
    ),
    _Share(name="pearson", measure=_by_column(_pearson), wants="numbers", uninformed=0.0),
    _Share(name="spearman", measure=_by_column(_spearman), wants="numbers", uninformed=0.0),
    _Share(name="jaccard", measure=_by_column(_jaccard), wants="text"),
)

_BY_NAME = {metric.name: metric for metric in _ALL}
METRICS: Mapping[str, Metric] = MappingProxyType(
    _BY_NAME | {"qwk": _BY_NAME["quadratic_weighted_kappa"]}
)
"""Every metric by name, and by the second name that data sets use."""
