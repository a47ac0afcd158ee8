"""Rubrics are versioned, hashed and treat task types alike."""

# Lambdas change what YAML gave.
# pyright: reportUnknownLambdaType=false

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from mappa_core.coach.rubrics import RubricSet, load_rubrics
from mappa_core.coach.rubrics.lint import lint
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import MEASURED
from mappa_core.rollout.teams import TEAMS, load_team

SOURCE = Path(__file__).parents[3] / "mappa_core/coach/rubrics/dsbench/paper-1/analyst.yaml"


def written(folder: Path, change: Callable[[dict], None]) -> RubricSet:  # type: ignore[type-arg]
    rubric = yaml.safe_load(SOURCE.read_text())
    change(rubric)
    folder.mkdir(exist_ok=True)
    (folder / "analyst.yaml").write_text(yaml.safe_dump(rubric))
    return load_rubrics("dsbench", str(folder))


@pytest.mark.parametrize(
    ("name", "rubric"), [*((name, "paper-1") for name in TEAMS), ("dsbench", "paper-2")]
)
def test_every_team_has_rubrics_that_are_fair_by_their_own_lint(name: str, rubric: str) -> None:
    team = load_team(name, "small-1")
    rubrics = load_rubrics(team.rubrics, rubric)
    agents = [agent.name for agent in team.agents]
    assert sorted(rubrics.rubrics) == sorted(agents)
    assert lint(rubrics) == ()


def test_the_second_rubric_of_dsbench_adds_extraction_and_changes_no_word() -> None:
    first, second = (load_rubrics("dsbench", name).rubrics for name in ("paper-1", "paper-2"))
    for agent, rubric in second.items():
        kinds = {name: kind for name, kind in rubric.task_types.items() if name != "extraction"}
        assert rubric.model_copy(update={"version": 1, "task_types": kinds}) == first[agent]
        assert rubric.task_types.keys() == MEASURED.keys()


def test_equals_are_judged_by_the_same_words() -> None:
    rubrics = load_rubrics("debate", "paper-1").rubrics.values()
    assert len({rubric.text() for rubric in rubrics}) == 1


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda r: r["task_types"]["regression"].update(cap=9), "differ in their caps"),
        (lambda r: r["task_types"]["regression"].update(floor=1), "floors"),
        (lambda r: r["task_types"]["regression"].update(otherwise=4), "metric's scale"),
        (lambda r: r["task_types"]["regression"].pop("examples"), "no worked example"),
        (lambda r: r["task_types"]["regression"]["examples"].pop(), "worked examples"),
        (lambda r: r["task_types"]["regression"].update(metric=None), "use of a metric"),
        (
            lambda r: r["task_types"]["regression"].update(metric="rmse_percent_of_range"),
            "test set",
        ),
        (lambda r: r["task_types"]["regression"].update(metric="sum_squared_error"), "test set"),
        (lambda r: r["task_types"]["regression"].update(metric="wit"), "not known"),
        (
            lambda r: r["task_types"]["regression"].update(metric="spearman"),
            "spearman is not in the coach's evidence, which has mae_over_mad, r2, rmse_over_sd",
        ),
        (
            lambda r: r["task_types"].update(forecast=r["task_types"]["regression"]),
            "task type forecast: metric rmse_over_sd is not in the coach's evidence",
        ),
        (lambda r: r["task_types"]["regression"].pop("otherwise"), "below the last step"),
        (lambda r: r["task_types"]["regression"]["scale"].reverse(), "do not fall"),
        (lambda r: r["task_types"]["regression"].update(better="higher"), "not in order"),
        (lambda r: r["bands"].pop(), "do not reach"),
        (lambda r: r["bands"].pop(2), "gap"),
        (lambda r: r.update(role="Be strict with regression."), "speak of regression"),
        (
            lambda r: r["task_types"]["regression"]["examples"][0].update(score=9.5),
            "scores of the worked examples",
        ),
    ],
)
def test_unfair_rubrics_are_found(
    change: Callable[[dict], None],  # type: ignore[type-arg]
    what: str,
    tmp_path: Path,
) -> None:
    findings = lint(written(tmp_path / "mine-1", change))
    assert any(what in finding.what for finding in findings), findings
    assert all(finding.where == "mine-1/analyst" for finding in findings)


def test_a_changed_word_is_another_rubric(tmp_path: Path) -> None:
    before = written(tmp_path / "mine-1", lambda r: None)
    after = written(tmp_path / "mine-1", lambda r: r.update(role="Another role."))
    assert before.name == after.name == "mine-1"
    assert before.sha256 != after.sha256


@pytest.mark.parametrize(
    ("name", "said"), [("none-1", "paper-1"), ("./no/such", "paper-1"), (".", "<agent>.yaml")]
)
def test_a_missing_rubric_set_is_a_sentence(name: str, said: str, tmp_path: Path) -> None:
    chosen = f"{tmp_path}/" if name == "." else name
    with pytest.raises(ConfigError, match=said):
        load_rubrics("mathchat", chosen)


@pytest.mark.parametrize("text", ["a: [", "version: 1", "just words"])
def test_a_broken_rubric_is_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "analyst.yaml").write_text(text)
    with pytest.raises(ConfigError, match="analyst"):
        load_rubrics("dsbench", str(tmp_path))
