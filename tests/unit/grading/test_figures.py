"""Figures of submissions, against scikit-learn, for every way in which a prediction is written."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as sk

from mappa_core.core.records.episodes import MEASURED, Outcome
from mappa_core.grading.figures import kind_of
from mappa_core.grading.metrics import METRICS
from mappa_core.grading.submissions import GradingKey, grade

TRUE = ["0", "0", "1", "1", "1", "0", "1", "0"]
SCORES = [0.1, 0.6, 0.7, 0.4, 0.9, 0.2, 0.8, 0.3]
SAID = [str(int(score > 0.5)) for score in SCORES]


def csv(**columns: Sequence[object] | NDArray[Any]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    lines = [f"{row},{','.join(map(str, cells))}" for row, cells in enumerate(rows)]
    return "\n".join([f"id,{','.join(columns)}", *lines]).encode()


def graded(metric: str, labels: bytes, submission: bytes | None) -> Outcome:
    targets = tuple(labels.split(b"\n")[0].decode().split(",")[1:])
    key = GradingKey(metric=metric, id_column="id", targets=targets, labels_sha256="0")
    return grade(submission, labels, key)


def values(outcome: Outcome) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in outcome.figures or ()}


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_every_metric_gives_the_figures_of_its_kind(metric: str):
    kind = kind_of(METRICS[metric])
    labels = csv(y=["a b", "b", "c"] if kind == "extraction" else [0, 1, 1])
    for submission in (labels, None):
        outcome = graded(metric, labels, submission)
        assert tuple(values(outcome)) == MEASURED[kind]
    assert set(values(outcome).values()) == {None}


@pytest.mark.parametrize(
    ("metric", "said"),
    [("roc_auc", SCORES), ("log_loss", SCORES), ("accuracy", SAID), ("f1", SAID)],
)
def test_two_labels_however_they_are_predicted(metric: str, said: list[object]):
    found = values(graded(metric, csv(y=TRUE), csv(y=said)))
    order = SCORES if said is SCORES else [int(label) for label in SAID]
    assert found == {
        "accuracy": pytest.approx(sk.accuracy_score(TRUE, SAID)),
        "balanced_accuracy": pytest.approx(sk.balanced_accuracy_score(TRUE, SAID)),
        "f1": pytest.approx(sk.f1_score([int(one) for one in TRUE], [int(one) for one in SAID])),
        "roc_auc": pytest.approx(sk.roc_auc_score([int(label) for label in TRUE], order)),
    }


def test_three_labels_as_words_as_ratings_and_as_a_probability_each():
    true, said = [0, 1, 2, 1, 0, 2, 2], [0, 1, 1, 1, 2, 2, 0]
    expected = {
        "accuracy": pytest.approx(sk.accuracy_score(true, said)),
        "balanced_accuracy": pytest.approx(sk.balanced_accuracy_score(true, said)),
        "f1": pytest.approx(sk.f1_score(true, said, average="weighted")),
        "roc_auc": pytest.approx(
            sk.roc_auc_score(np.eye(3)[true], np.eye(3)[said], average="macro")
        ),
    }
    words = [f"w{label}" for label in true], [f"w{label}" for label in said]
    assert values(graded("accuracy", csv(y=words[0]), csv(y=words[1]))) == expected
    assert values(graded("map_at_3", csv(y=words[0]), csv(y=words[1]))) == expected
    assert values(graded("qwk", csv(y=true), csv(y=[label + 0.2 for label in said]))) == expected
    shares = 0.2 + 0.4 * np.eye(3)[said]
    columns = [
        csv(a=table[:, 0], b=table[:, 1], c=table[:, 2]) for table in (np.eye(3)[true], shares)
    ]
    assert values(graded("log_loss", *columns)) == expected


def test_numbers_are_measured_without_their_unit():
    true, said = np.array([1.0, 2.0, 4.0, 9.0]), np.array([1.5, 2.0, 3.0, 8.0])
    rmse = sk.root_mean_squared_error(true, said)
    outcome = graded("rmsle", csv(y=true), csv(y=said))
    assert values(outcome) == {
        "rmse_over_sd": pytest.approx(rmse / true.std()),
        "mae_over_mad": pytest.approx(
            sk.mean_absolute_error(true, said) / np.mean(np.abs(true - 3.0))
        ),
        "r2": pytest.approx(sk.r2_score(true, said)),
        "rmse_percent_of_range": pytest.approx(100 * rmse / 8),
    }
    again = values(graded("rmsle", csv(y=1000 * true), csv(y=1000 * said)))
    assert again == pytest.approx(values(outcome))


def test_several_targets_are_the_mean_of_each():
    one = values(graded("roc_auc", csv(y=TRUE), csv(y=SCORES)))
    other = values(graded("roc_auc", csv(y=TRUE), csv(y=SCORES[::-1])))
    both = values(graded("roc_auc", csv(y=TRUE, z=TRUE), csv(y=SCORES, z=SCORES[::-1])))
    for name, value in both.items():
        assert value == pytest.approx(((one[name] or 0) + (other[name] or 0)) / 2)


@pytest.mark.parametrize(
    ("metric", "labels", "constant"),
    [
        ("accuracy", ["a", "a", "a", "b"], {"accuracy": "a", "f1": "b"}),
        ("accuracy", ["a", "a", "b", "c"], {"accuracy": "a", "f1": "a", "roc_auc": "a"}),
        ("rmse", [1.0, 2.0, 6.0], {"rmse_over_sd": 3.0, "mae_over_mad": 2.0, "r2": 3.0}),
        ("mae", [1.0, 2.0, 6.0], {"rmse_percent_of_range": 3.0}),
        ("jaccard", ["a b", "a b", "c"], {"jaccard": "a b"}),
    ],
)
def test_the_charge_is_what_that_constant_gets(
    metric: str, labels: list[object], constant: dict[str, object]
):
    charged = {f.name: f.charged for f in graded(metric, csv(y=labels), None).figures or ()}
    for name, said in constant.items():
        played = graded(metric, csv(y=labels), csv(y=[said] * len(labels)))
        assert charged[name] == pytest.approx(values(played)[name])
