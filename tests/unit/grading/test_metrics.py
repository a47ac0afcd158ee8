"""Every metric against scikit-learn, SciPy or a value worked by hand."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from mappa_core.grading.metrics import METRICS
from mappa_core.grading.skill import constant_value, skill


def column(values):
    return np.array(values).reshape(-1, 1)


def measure(name, truth, predicted):
    return METRICS[name].measure(column(truth), column(predicted))


TRUE_CLASSES = ["a", "b", "b", "c", "c", "c"]
GIVEN_CLASSES = ["a", "b", "c", "c", "c", "a"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", 4 / 6),
        ("balanced_accuracy", (1 + 1 / 2 + 2 / 3) / 3),
        ("f1_micro", 4 / 6),
        ("f1_macro", (2 / 3 + 2 / 3 + 2 / 3) / 3),
    ],
)
def test_classes_by_hand(name, expected):
    assert measure(name, TRUE_CLASSES, GIVEN_CLASSES) == pytest.approx(expected)


def test_classes_as_in_scikit_learn():
    reference = {
        "accuracy": sk.accuracy_score(TRUE_CLASSES, GIVEN_CLASSES),
        "balanced_accuracy": sk.balanced_accuracy_score(TRUE_CLASSES, GIVEN_CLASSES),
        "f1_macro": sk.f1_score(TRUE_CLASSES, GIVEN_CLASSES, average="macro"),
        "f1_micro": sk.f1_score(TRUE_CLASSES, GIVEN_CLASSES, average="micro"),
    }
    for name, expected in reference.items():
        assert measure(name, TRUE_CLASSES, GIVEN_CLASSES) == pytest.approx(expected), name


def test_a_label_that_is_not_in_the_truth_is_just_wrong():
    assert measure("balanced_accuracy", ["a", "b"], ["a", "z"]) == pytest.approx(0.5)
    assert measure("accuracy", ["a", "b"], ["a", "longer than b"]) == pytest.approx(0.5)


def test_binary_f1_counts_the_greater_label():
    # 1: precision 1/2, recall 1/1.
    assert measure("f1", ["0", "1", "0"], ["0", "1", "1"]) == pytest.approx(2 / 3)
    assert measure("f1", ["no", "yes", "no"], ["no", "no", "no"]) == 0.0


def test_area_under_the_curve_by_hand():
    # Pairs (positive, negative): 0.4>0.1, 0.4>0.3, 0.2>0.1, 0.2<0.3: 3 of 4.
    truth, scores = ["n", "y", "n", "y"], [0.1, 0.4, 0.3, 0.2]
    assert measure("roc_auc", truth, scores) == pytest.approx(0.75)
    assert measure("roc_auc", truth, [5, 5, 5, 5]) == pytest.approx(0.5)


def test_log_loss_of_one_column_and_of_several():
    expected = -(math.log(0.8) + math.log(0.6)) / 2
    assert measure("log_loss", ["1", "0"], [0.8, 0.4]) == pytest.approx(expected)
    truth = np.array([[1.0, 0, 0], [0, 1, 0]])
    predicted = np.array([[0.5, 0.25, 0.25], [0.2, 0.2, 0.0]])  # the second row is scaled to 1
    expected = -(math.log(0.5) + math.log(0.5)) / 2
    assert METRICS["log_loss"].measure(truth, predicted) == pytest.approx(expected)


def test_a_sure_mistake_costs_much_and_not_infinitely():
    value = measure("log_loss", ["1", "0"], [0.0, 0.0])
    assert 15 < value < 20


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rmse", math.sqrt((1 + 0 + 4) / 3)),
        ("mae", 1.0),
        ("medae", 1.0),
        ("mcrmse", math.sqrt(5 / 3)),
        ("percent_of_range", 100 * math.sqrt(5 / 3) / 3),
        ("smape", 100 * (2 * 1 / 3 + 0 + 2 * 2 / 6) / 3),
        ("r2", 1 - 5 / (14 / 3)),
        ("rmsle", math.sqrt((math.log(3 / 2) ** 2 + math.log(3 / 5) ** 2) / 3)),
    ],
)
def test_numbers_by_hand(name, expected):
    assert measure(name, [1.0, 2.0, 4.0], [2.0, 2.0, 2.0]) == pytest.approx(expected)


numbers = st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=3, max_size=30).filter(
    lambda rows: np.ptp([t for t, _ in rows]) > 1 and np.ptp([p for _, p in rows]) > 1
)


@given(numbers)
def test_numbers_as_in_scikit_learn_and_scipy(rows):
    truth, predicted = (np.array(values) for values in zip(*rows, strict=True))
    reference = {
        "rmse": sk.root_mean_squared_error(truth, predicted),
        "rmsle": sk.root_mean_squared_log_error(truth, predicted),
        "mae": sk.mean_absolute_error(truth, predicted),
        "medae": sk.median_absolute_error(truth, predicted),
        "r2": sk.r2_score(truth, predicted),
        "pearson": stats.pearsonr(truth, predicted).statistic,
        "spearman": stats.spearmanr(truth, predicted).statistic,
    }
    for name, expected in reference.items():
        assert measure(name, truth, predicted) == pytest.approx(expected, abs=1e-6), name


def test_smape_takes_a_row_of_zeros_for_right():
    assert measure("smape", [0.0, 1.0], [0.0, 1.0]) == 0.0
    assert measure("smape", [0.0, 1.0], [5.0, 1.0]) == pytest.approx(100.0)


def test_weighted_kappa_by_hand_and_over_gaps():
    # Disagreement 1 and 1 (weights 1 each) of 4 rows; by chance 1.5 on average: 1 - 0.5 / 1.25.
    truth, rated = [1.0, 2, 3, 4], [1.0, 2, 4, 3]
    expected = sk.cohen_kappa_score([1, 2, 3, 4], [1, 2, 4, 3], weights="quadratic")
    assert measure("quadratic_weighted_kappa", truth, rated) == pytest.approx(expected) == 0.8
    # A rating nobody used still counts as a step: 0 and 4 are four apart.
    far = measure("qwk", [0.0, 0, 4, 4], [0.0, 1, 4, 4])
    assert far > measure("qwk", [0.0, 0, 4, 4], [0.0, 4, 4, 4])
    assert measure("qwk", [2.0, 2.0], [2.0, 2.4]) == 1.0


ratings = st.lists(st.tuples(st.integers(0, 9), st.integers(-9, 9)), min_size=2, max_size=30)


@given(ratings)
def test_weighted_kappa_as_in_scikit_learn(rows):
    truth, rated = (np.array(values) for values in zip(*rows, strict=True))
    scale = list(range(min(*truth, *rated), max(*truth, *rated) + 1))
    expected = 1.0
    if len(scale) > 1:
        expected = sk.cohen_kappa_score(truth, rated, labels=scale, weights="quadratic")
    measured = measure("qwk", truth.astype(float), rated.astype(float))
    assert measured == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("wild", [6e4, 1e18, -1e30, 1e150])
def test_a_wild_rating_costs_no_memory_and_says_nothing(wild):
    truth = np.tile([1.0, 2, 3, 4], 20)
    assert measure("qwk", truth, [wild, *truth[1:]]) == pytest.approx(0, abs=1e-3)
    assert measure("qwk", truth, [wild] * 80) == 0.0


def test_as_many_labels_as_rows_are_counted_once_each():
    truth, guesses = ["a", "b"] * 40_000, [f"{n}" for n in range(79_999)] + ["b"]
    began = time.process_time()
    # The one right row: precision 1, recall 1 in 40,000; beside b there are 80,000 other labels.
    assert measure("f1_macro", truth, guesses) == pytest.approx(2 / 40_001 / 80_001)
    assert time.process_time() - began < 10  # 0.1 s; a pass over all rows for each takes a minute


def test_mean_average_precision_at_three():
    truth = ["a", "b", "c", "d"]
    rankings = ["a b c", "a b c", "a b c", "a b c"]
    assert measure("map_at_3", truth, rankings) == pytest.approx((1 + 1 / 2 + 1 / 3 + 0) / 4)
    assert measure("map_at_3", ["c"], ["a a b b c"]) == pytest.approx(1 / 3)
    assert measure("map_at_3", ["d"], ["a b c d"]) == 0.0


def test_gini_of_two_classes_is_twice_the_area_less_one():
    truth, scores = [0.0, 1, 0, 1, 1], [0.1, 0.9, 0.5, 0.5, 0.2]
    area = sk.roc_auc_score(truth, scores)
    assert measure("normalized_gini", truth, scores) == pytest.approx(2 * area - 1)
    assert measure("normalized_gini", truth, truth) == pytest.approx(1.0)
    assert measure("normalized_gini", truth, [3.0] * 5) == pytest.approx(0.0)


def test_shared_words():
    expected = (2 / 3 + 0 + 1) / 3
    truth, given_ = ["so happy today", "sad", ""], ["Happy today", "glad", ""]
    assert measure("jaccard", truth, given_) == pytest.approx(expected)


def test_several_targets_are_averaged_by_column():
    truth, predicted = np.array([[0.0, 0], [0, 0]]), np.array([[1.0, 3], [1, 3]])
    assert METRICS["mcrmse"].measure(truth, predicted) == pytest.approx(2.0)
    assert METRICS["rmse"].measure(truth, predicted) == pytest.approx(2.0)


# --- skill


@pytest.mark.parametrize(
    ("name", "truth", "expected"),
    [
        ("accuracy", ["a", "a", "b"], 2 / 3),
        ("balanced_accuracy", ["a", "a", "b"], 1 / 2),
        ("f1", ["0", "1", "0", "1"], 2 / 3),
        ("roc_auc", ["0", "1", "1"], 0.5),
        ("log_loss", ["0", "1"], math.log(2)),
        ("rmse", [0.0, 2.0], 1.0),
        ("mae", [0.0, 1.0, 10.0], 10 / 3),
        ("r2", [1.0, 5.0], 0.0),
        ("pearson", [1.0, 2.0], 0.0),
        ("qwk", [1.0, 2.0], 0.0),
        ("map_at_3", ["a", "a", "b"], (1 + 1 + 1 / 2) / 3),
        ("rmsle", [0.0, math.e**2 - 1], 1.0),
    ],
)
def test_the_best_constant_by_hand(name, truth, expected):
    assert constant_value(METRICS[name], column(truth)) == pytest.approx(expected)


def test_skill_is_zero_for_guessing_or_nothing_and_one_for_perfection():
    rmse = METRICS["rmse"]
    assert skill(rmse, 1.0, 4.0) == pytest.approx(0.75)
    assert skill(rmse, 0.0, 4.0) == 1.0
    assert skill(rmse, 9.0, 4.0) == 0.0
    assert skill(rmse, None, 4.0) == 0.0
    assert skill(METRICS["accuracy"], 0.9, 0.6) == pytest.approx(0.75)
    assert skill(METRICS["accuracy"], 1.0, 1.0) == 1.0


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=12), st.integers(0, 10_000))
def test_no_constant_submission_has_skill(truth, seed):
    generator = np.random.default_rng(seed)
    for name in ("accuracy", "balanced_accuracy", "f1_macro", "f1_micro"):
        metric = METRICS[name]
        guess = np.full((len(truth), 1), generator.choice(list("abcd")))
        value = metric.measure(column(truth), guess)
        assert skill(metric, value, constant_value(metric, column(truth))) in (0.0, 1.0)
