"""What a submission is worth, and the exact reason where it is worth nothing."""

import pickle
import tracemalloc

import pytest

from mappa_core.core.records.episodes import Outcome
from mappa_core.grading.submissions import GradingKey, Invalid, check_labels, grade, parse_key

LABELS = b"id,y\n7,1.0\n8,2.0\n9,4.0\n"


def key(metric: str = "rmse", targets: tuple[str, ...] = ("y",)) -> GradingKey:
    return GradingKey(metric=metric, id_column="id", targets=targets, labels_sha256="0")


def judged(submission: str | bytes | None, metric: str = "rmse", labels: bytes = LABELS) -> Outcome:
    data = submission.encode() if isinstance(submission, str) else submission
    return grade(data, labels, key(metric))


def test_rows_are_matched_by_id_and_never_by_position():
    outcome = judged("id,y\n9,4\n7,1\n8,2\n")
    assert (outcome.value, outcome.skill, outcome.success) == (0.0, 1.0, True)
    assert outcome.detail is None
    assert judged("y,id\n4,9\n1,7\n2,8\n").value == 0.0


def test_ids_that_a_data_frame_made_floats_are_the_same_ids():
    assert judged("id,y\n7.0,1\n8.0,2\n9.0,4\n").value == 0.0


@pytest.mark.parametrize(
    ("submission", "reason"),
    [
        (None, "there is no submission.csv"),
        ("", "it is empty"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (pickle.dumps({"id": [1]}), "not UTF-8"),
        ("id,y\n7,1\n8,2\n", "it has id '9' not at all"),
        ("id,y\n", "it has id '7', '8', '9' not at all"),
        ("id,y\n7,1\n8,2\n9,4\n10,4\n", "it has id '10' though the task has no such row"),
        ("id,y\n7,1\n7,1\n8,2\n9,4\n", "it has id '7' more than once"),
        ("id,y\n7,1\n7.0,1\n8,2\n9,4\n", "it has id '7' more than once"),
        ("y\n1\n2\n4\n", "its columns are y, not id, y"),
        ("id,z\n7,1\n8,2\n9,4\n", "its columns are id, z, not id, y"),
        ("id,y,extra\n7,1,0\n8,2,0\n9,4,0\n", "its columns are id, y, extra, not id, y"),
        ("id,y,y\n7,1,1\n8,2,2\n9,4,4\n", "a column name occurs twice"),
        (",id,y\n0,7,1\n1,8,2\n2,9,4\n", "its columns are , id, y"),
        ("id,y\n7,1\n8,\n9,4\n", "1 cells of y are empty"),
        ("id,y\n7,1\n8\n9,4\n", "row 3 has 1 cells where the header has 2"),
        ("id,y\n7,1\n8,two\n9,4\n", "y holds 'two', not a number"),
        ("id,y\n7,1\n8,nan\n9,4\n", "y holds 'nan', not a number"),
        ("id,y\n7,1\n8,inf\n9,4\n", "y holds 'inf', not a number"),
        ("id,y\n7,1\n8,2,3\n9,4\n", "row 3 has 3 cells where the header has 2"),
        ("id,y\n" + "1,1\n" * 7, "it has more than 6 rows where the task has 3"),
        (f"id,{'z' * 100_000}\n7,1\n", f"its columns are id, {'z' * 40}, not id, y"),
        ("id,y\n7,1\n8,1e308\n9,-1e308\n", "rmse is not defined for these predictions"),
    ],
)
def test_an_invalid_one_says_exactly_why(submission, reason):
    outcome = judged(submission)
    assert reason in (outcome.detail or "")
    assert (outcome.success, outcome.value, outcome.skill) == (False, None, 0.0)
    # It is charged what the mean of the labels would have cost.
    assert outcome.charged == pytest.approx((14 / 9) ** 0.5)


def test_a_constant_submission_is_valid_and_no_success():
    outcome = judged("id,y\n7,2\n8,2\n9,2\n")
    assert outcome.value == pytest.approx((5 / 3) ** 0.5)
    assert (outcome.success, outcome.skill) == (False, 0.0)


def test_labels_are_compared_as_the_task_spells_them():
    labels = b"id,kind\n1,cat\n2,dog\n3,dog\n"
    grading = key("accuracy", ("kind",))
    assert grade(b"id,kind\n1,cat\n2,dog\n3,dog\n", labels, grading).value == 1.0
    assert grade(b"id,kind\n1,Cat\n2,dog\n3,dog\n", labels, grading).value == pytest.approx(2 / 3)
    ones = b"id,kind\n1,0\n2,1\n3,1\n"
    assert grade(b"id,kind\n1,0.0\n2,1.0\n3,1.0\n", ones, grading).value == 1.0


def test_scores_and_probabilities_need_no_labels_in_the_submission():
    labels = b"id,kind\n1,no\n2,yes\n3,yes\n"
    given = b"id,kind\n1,0.1\n2,0.8\n3,0.9\n"
    assert grade(given, labels, key("roc_auc", ("kind",))).value == 1.0
    assert grade(given, labels, key("log_loss", ("kind",))).success
    beyond = grade(b"id,kind\n1,0.1\n2,1.8\n3,1\n", labels, key("log_loss", ("kind",)))
    assert "probabilities outside 0 to 1" in (beyond.detail or "")


def test_every_target_counts():
    labels = b"id,a,b\n1,0,0\n2,0,2\n"
    grading = key("mcrmse", ("a", "b"))
    assert grade(b"id,a,b\n1,0,1\n2,0,3\n", labels, grading).value == pytest.approx(0.5)
    missing = grade(b"id,a\n1,0\n2,0\n", labels, grading)
    assert missing.detail == "its columns are id, a, not id, a, b"


def test_negative_numbers_have_no_logarithm():
    assert "takes none below 0" in (judged("id,y\n7,1\n8,-2\n9,4\n", "rmsle").detail or "")


def test_an_undefined_correlation_is_no_crash():
    assert judged("id,y\n7,1\n8,1\n9,1\n", "pearson").value == 0.0


def test_one_long_cell_costs_the_memory_of_one():
    labels = b"id,kind\n" + b"".join(b"%d,%d\n" % (row, row % 2) for row in range(5_000))
    submission = labels.replace(b"\n9,1\n", b"\n9,%s\n" % (b"x" * 100_000))
    tracemalloc.start()
    outcome = grade(submission, labels, key("accuracy", ("kind",)))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcome.value == pytest.approx(4_999 / 5_000)
    assert most_bytes < 50e6  # 5,000 times 400 kB otherwise


@pytest.mark.parametrize(
    ("labels", "metric", "reason"),
    [
        ("id,y\n7,1\n8,\n", "rmse", "1 cells of y are empty"),
        ("id,y\n7,1\n8,two\n", "rmse", "y holds 'two', not a number"),
        ("id,y\n7,1\n8,-2\n", "rmsle", "takes none below 0"),
        ("id,y\n7,1\n7,2\n", "rmse", "it has id '7' more than once"),
        ("id,y\n", "rmse", "it has no rows"),
        ("id,y\n7,1\n8,1.0\n", "roc_auc", "y is the same in every row"),
        ("id,y\n7,5\n8,5\n", "percent_of_range", "y is the same in every row"),
    ],
)
def test_labels_that_nothing_can_be_measured_with_are_known_before(labels, metric, reason):
    with pytest.raises(Invalid, match=reason):
        check_labels(labels.encode(), key(metric))


def test_labels_may_be_words_and_classes_may_be_absent():
    check_labels(b"id,y\n7,cat\n8,dog\n", key("log_loss"))
    check_labels(b"id,y,z\n7,1,0\n8,1,0\n", key("log_loss", ("y", "z")))


def test_a_grading_key_survives_as_text_and_holds_no_labels():
    grading = key("rmse", ("a", "b"))
    assert parse_key(grading.as_text()) == grading
