"""Bundled tasks: balanced, reproducible, disjoint by content, and solvable only from features."""

import csv
import io
from collections import Counter
from dataclasses import replace

import pytest

from mappa_core.core.errors import ConfigError
from mappa_core.grading.submissions import grade, parse_key
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.problems.tabular import bundled_task
from mappa_core.rollout.problems.tabular_recipes import RECIPES
from mappa_core.rollout.problems.tasks import TaskProblems, stratified
from mappa_core.rollout.protocols import TaskSource
from tests.builders import make_problem


def rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode())))


def source(**changes: int) -> TaskSource:
    sizes = {"train_size": 8, "held_out_size": 6} | changes
    found = problem_source(ProblemsConfig.model_validate({"source": "tabular", **sizes}))
    assert isinstance(found, TaskSource)
    return found


EVERY = pytest.mark.parametrize("recipe", RECIPES, ids=[recipe.name for recipe in RECIPES])


@EVERY
def test_train_test_sample_and_labels_fit_together(recipe):
    task = bundled_task(recipe, 0)
    files, labels = task.files(), rows(task.labels())
    train, test, sample = (rows(files[name]) for name in files)
    key = parse_key(task.problem.answer)
    assert set(train[0]) - set(test[0]) == set(key.targets)
    assert list(sample[0]) == list(labels[0]) == [key.id_column, *key.targets]
    ids = [[row[key.id_column] for row in table] for table in (test, sample, labels)]
    assert ids[0] == ids[1] == ids[2]
    everyone = ids[0] + [row[key.id_column] for row in train]
    assert len(set(everyone)) == len(everyone)
    assert ids[0] != sorted(ids[0])
    for target in key.targets:
        assert target in task.problem.statement
        assert all(row[target] for row in labels)


@EVERY
def test_the_sample_is_a_valid_submission_without_skill_and_the_truth_has_all_of_it(recipe):
    task = bundled_task(recipe, 0)
    key = parse_key(task.problem.answer)
    sample = grade(task.files()["sample_submission.csv"], task.labels(), key)
    assert sample.detail is None
    assert (sample.success, sample.skill) == (False, 0.0)
    truth = task.labels()
    if key.metric == "roc_auc":
        assert grade(truth, truth, key).value == 1.0
    else:
        assert (grade(truth, truth, key).success, grade(truth, truth, key).skill) == (True, 1.0)


def test_a_statement_always_means_the_same_data():
    once, again = (bundled_task(RECIPES[2], 1) for _ in range(2))
    assert once.problem == again.problem
    assert once.files() == again.files()
    assert bundled_task(RECIPES[2], 0).problem.id != once.problem.id


def test_sets_are_balanced_and_repeat_for_a_seed():
    chosen = source()
    for problems in (chosen.train(), chosen.held_out()):
        counts = Counter(problem.task_type for problem in problems)
        assert counts["classification"] == counts["regression"]
    assert source().train() == chosen.train()
    assert source(seed=5).train() != chosen.train()
    assert len({problem.id for problem in (*chosen.train(), *chosen.held_out())}) == 14


def test_the_variety_that_is_asked_for_is_there():
    names = {recipe.name for recipe in RECIPES}
    real = {"iris", "wine", "breast_cancer", "diabetes", "digits", "linnerud"}
    assert real <= names
    assert len({recipe.id_column for recipe in RECIPES}) > 2
    assert any(len(recipe.targets) > 1 for recipe in RECIPES)
    holes = bundled_task(next(r for r in RECIPES if r.missing), 0).files()["train.csv"]
    assert any("" in row.values() for row in rows(holes))
    kinds = {not row["species"].isdigit() for row in rows(bundled_task(RECIPES[0], 0).labels())}
    assert kinds == {True}


def test_shared_data_is_found_under_another_name():
    task = bundled_task(RECIPES[0], 0)
    renamed = replace(task, problem=make_problem("Predict something else"))
    with pytest.raises(ConfigError, match="shares data with training task"):
        TaskProblems([task], [renamed])
    half = replace(renamed, content=frozenset([*task.content][:40]) | {"other"})
    with pytest.raises(ConfigError, match="shares data"):
        TaskProblems([task], [half])
    chance = replace(
        renamed, content=frozenset([*task.content][:1]) | frozenset(map(str, range(99)))
    )
    assert TaskProblems([task], [chance]).held_out() == (renamed.problem,)
    everything = [bundled_task(recipe, 0) for recipe in RECIPES]
    for index, one in enumerate(everything):
        for other in everything[index + 1 :]:
            assert not one.content & other.content


def test_a_sample_takes_types_in_turn_and_is_a_prefix_of_a_larger_one():
    tasks = [bundled_task(recipe, 0) for recipe in RECIPES]
    six, four = stratified(tasks, 6, 3), stratified(tasks, 4, 3)
    assert six[:4] == four
    assert Counter(task.problem.task_type for task in six) == {"classification": 3, "regression": 3}
    assert stratified(tasks, 6, 4) != six


def test_a_task_of_another_run_is_refused():
    with pytest.raises(ConfigError, match="not among this run's problems"):
        source().labels(make_problem())
