import pytest

from mappa_core.coach.rubrics import RubricSet, Step, TaskType, load_rubrics
from mappa_core.coach.rubrics.arithmetic import CONSTANT, NOTHING, RANDOM, cap, null_caps, value

AUC = TaskType(
    metric="roc_auc", scale=(Step(bound=0.8, cap=9), Step(bound=0.5, cap=5)), otherwise=3
)
RMSE = TaskType(
    metric="rmse_over_sd",
    better="lower",
    scale=(Step(bound=0.5, cap=9), Step(bound=1.2, cap=5)),
    otherwise=4,
)


def test_caps_by_hand() -> None:
    assert [cap(AUC, found) for found in (0.9, 0.8, 0.6, 0.4, None)] == [9, 9, 5, 3, 3]
    assert [cap(RMSE, found) for found in (0.4, 0.5, 1.0, 1.4, None)] == [9, 9, 5, 4, 4]
    assert (value(AUC, CONSTANT), value(RMSE, CONSTANT), value(AUC, NOTHING)) == (0.5, 1.0, None)
    assert value(RMSE, RANDOM) == pytest.approx(2**0.5)


def test_an_unequal_rubric_pays_regression_more_for_nothing() -> None:
    """As the reference's did: poor classification at 3, poor regression at 4."""
    rubrics = load_rubrics("dsbench", "paper-1")
    analyst = rubrics.rubrics["analyst"].model_copy(
        update={"task_types": {"classification": AUC, "regression": RMSE}}
    )
    unequal = RubricSet(name="unequal-1", sha256="aa", rubrics={"analyst": analyst})
    found = {each.policy: each for each in null_caps(unequal)}
    assert dict(found[NOTHING].points) == {"classification": 3, "regression": 4}
    assert found[NOTHING].spread == 1.0
    assert found[CONSTANT].spread == 0.0
    assert dict(found[RANDOM].points) == {"classification": 5, "regression": 4}


@pytest.mark.parametrize("name", ["paper-1", "paper-2"])
def test_the_packaged_rubrics_pay_alike_for_nothing(name: str) -> None:
    caps = null_caps(load_rubrics("dsbench", name))
    assert {each.agent for each in caps} == {"analyst"}
    assert {each.spread for each in caps} == {0.0}


def test_a_text_handed_in_whole_is_capped_like_no_submission() -> None:
    extraction = load_rubrics("dsbench", "paper-2").rubrics["analyst"].task_types["extraction"]
    assert [cap(extraction, found) for found in (None, 0.0, 0.6, 0.716, 0.73)] == [3, 3, 3, 8, 9]


def test_a_rubric_without_metrics_has_no_caps_for_nothing() -> None:
    assert null_caps(load_rubrics("mathchat", "paper-1")) == ()
