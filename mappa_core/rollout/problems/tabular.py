"""Bundled prediction tasks as small CSV files (`tabular_recipes` has their data).

A table depends on its name and number alone, so a statement always means the same data; the seed of
a configuration chooses among the tasks and never changes one.
"""

import numpy as np
import pandas as pd

from mappa_core.core import ids
from mappa_core.core.records.episodes import Problem
from mappa_core.grading.submissions import GradingKey, parse_key
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems.tabular_recipes import RECIPES, ROWS, Recipe
from mappa_core.rollout.problems.tasks import (
    SAMPLE,
    TEST,
    TRAIN,
    Task,
    TaskProblems,
    as_csv,
    neutral,
    sample_submission,
    sha256,
    stratified,
)

LEVEL = {False: 1, True: 2}
"""Tasks with missing values, categories or several targets are the harder ones."""
_TEST_SHARE = 0.25
_MISSING_SHARE = 0.05
_COLUMNS_NAMED = 12
_DECIMALS = 4


def open_problems(config: ProblemsConfig, workspace_mib: int | None) -> TaskProblems:  # noqa: ARG001
    """The bundled tasks as a source: as many of each set as asked for, both task types in turn."""
    train, held_out = (
        stratified(_pool(is_held_out, size), size, config.seed)
        for is_held_out, size in ((False, config.train_size), (True, config.held_out_size))
    )
    return TaskProblems(train, held_out)


def _pool(held_out: bool, size: int) -> list[Task]:
    """Enough tasks of each type: the bundled ones and as many variants of each generator."""
    recipes = [recipe for recipe in RECIPES if recipe.held_out is held_out]
    generators = {recipe.task_type: 0 for recipe in recipes}
    for recipe in recipes:
        generators[recipe.task_type] += recipe.variants is None
    wanted = -(-size // 2)
    return [
        bundled_task(recipe, variant)
        for recipe in recipes
        for variant in range(recipe.variants or -(-wanted // generators[recipe.task_type]))
    ]


def bundled_task(recipe: Recipe, variant: int) -> Task:
    """One task, the same whenever it is made."""
    random = np.random.default_rng(ids.derive_seed("split", recipe.name, variant))
    frame = _prepared(recipe, variant, random)
    features = frame.drop(columns=[recipe.id_column, *recipe.targets])
    test_rows = max(5, round(_TEST_SHARE * len(frame)))
    test, train = frame.iloc[:test_rows], frame.iloc[test_rows:]
    answers = as_csv(test[[recipe.id_column, *recipe.targets]])
    filler = neutral(recipe.metric) or str(train[recipe.targets[0]].iloc[0])
    problem = _problem(recipe, variant, train, test, answers)
    files = {
        TRAIN: as_csv(train),
        TEST: as_csv(test.drop(columns=list(recipe.targets))),
        SAMPLE: sample_submission(test, parse_key(problem.answer), filler),
    }
    return Task(
        problem=problem,
        files=lambda: files,
        labels=lambda: answers,
        content=frozenset(sha256(row) for row in as_csv(features).splitlines()[1:]),
    )


def _prepared(recipe: Recipe, variant: int, random: np.random.Generator) -> pd.DataFrame:
    """Shuffled and cut to size, with ids that tell nothing, and holes where there should be."""
    frame = recipe.make(ids.derive_seed("task", recipe.name, variant))
    frame = frame.iloc[random.permutation(len(frame))[:ROWS]].reset_index(drop=True)
    frame = frame.round(_DECIMALS)
    numbers = random.permutation(len(frame)) + 1000
    if recipe.missing:
        column = frame.columns[0]
        holes = random.random(len(frame)) < _MISSING_SHARE
        frame[column] = frame[column].mask(holes)
    frame.insert(0, recipe.id_column, numbers)
    return frame


def _problem(
    recipe: Recipe, variant: int, train: pd.DataFrame, test: pd.DataFrame, answers: bytes
) -> Problem:
    targets = " and ".join(recipe.targets)
    number = "" if recipe.variants == 1 else f" {variant + 1}"
    statement = (
        f"Predict {targets} ({recipe.task_type}, {recipe.metric}). "
        f"Columns: {', '.join(_named(list(train.columns)))}. "
        f"Table {recipe.name}{number}: {len(train)} rows to learn from, {len(test)} to predict."
    )
    key = GradingKey(
        metric=recipe.metric,
        id_column=recipe.id_column,
        targets=recipe.targets,
        labels_sha256=sha256(answers),
    )
    return Problem(
        id=ids.problem_id(statement),
        dataset=f"tabular-{recipe.name}",
        task_type=recipe.task_type,
        level=LEVEL[recipe.missing or len(recipe.targets) > 1],
        statement=statement,
        answer=key.as_text(),
    )


def _named(columns: list[str]) -> list[str]:
    if len(columns) <= _COLUMNS_NAMED:
        return columns
    left_out = len(columns) - 4
    return [*columns[:3], f"{left_out} more", columns[-1]]
