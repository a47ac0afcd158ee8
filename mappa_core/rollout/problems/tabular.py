"""Bundled prediction tasks: scikit-learn's data sets and seeded generators, as small CSV files.

    to learn from                                  held out (other data, other generators)
    iris, breast_cancer, blobs, moons              wine, digits, circles, shells    classification
    diabetes, friedman1, town, twins               linnerud, friedman3, counts      regression

Among them are string labels, several targets, missing values, categories, and id columns of several
names. A generated table depends on its name and number alone, so a statement always means the same
data; the seed of a configuration chooses among the tasks and never changes one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from sklearn import datasets

from mappa_core.core import ids
from mappa_core.core.records.episodes import Problem
from mappa_core.grading.submissions import GradingKey, parse_key
from mappa_core.rollout.config import ProblemsConfig
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

Generator: TypeAlias = np.random.Generator
LEVEL = {False: 1, True: 2}
"""Tasks with missing values, categories or several targets are the harder ones."""
_MOST_ROWS = 300
_TEST_SHARE = 0.25
_MISSING_SHARE = 0.05
_COLUMNS_NAMED = 12
_DECIMALS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One kind of task."""

    name: str
    task_type: str
    metric: str
    targets: tuple[str, ...]
    make: Callable[[int], pd.DataFrame]
    """Features and targets of variant 0, 1, ..."""
    held_out: bool
    id_column: str = "id"
    variants: int | None = None
    """How many there are; None for a generator, which has no end."""
    missing: bool = False


def _bundled(load: Callable[..., Any], target: str) -> Callable[[int], pd.DataFrame]:
    def make(_: int) -> pd.DataFrame:
        bunch = load()
        names = [str(name).split(" (")[0].replace(" ", "_") for name in bunch.feature_names]
        frame = pd.DataFrame(bunch.data, columns=names)
        labels = getattr(bunch, "target_names", None)
        frame[target] = bunch.target if labels is None else np.asarray(labels)[bunch.target]
        return frame

    return make


def _exercise(_: int) -> pd.DataFrame:
    """Linnerud: three exercises, three measures of the body, twenty people."""
    bunch: Any = datasets.load_linnerud()
    features = pd.DataFrame(bunch.data, columns=bunch.feature_names)
    return features.join(pd.DataFrame(bunch.target, columns=bunch.target_names))


def _generated(
    name: str, draw: Callable[[int], tuple[Any, Any]], target: str, labels: Sequence[str] = ()
) -> Callable[[int], pd.DataFrame]:
    def make(variant: int) -> pd.DataFrame:
        features, values = draw(ids.derive_seed("task", name, variant))
        frame = pd.DataFrame(features, columns=[f"x{k + 1}" for k in range(features.shape[1])])
        frame[target] = np.asarray(labels)[values] if labels else values
        return frame

    return make


def _shells(seed: int) -> tuple[Any, Any]:
    return datasets.make_gaussian_quantiles(
        n_samples=_MOST_ROWS, n_features=3, n_classes=3, random_state=seed
    )


def _counts(seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    features = random.uniform(0, 1, (_MOST_ROWS, 4))
    rate = np.exp(1 + 2 * features[:, 0] - features[:, 1] + features[:, 2] * features[:, 3])
    return features, random.poisson(rate)


def _town(variant: int) -> pd.DataFrame:
    """Prices that depend on size, age and a category."""
    random = np.random.default_rng(ids.derive_seed("task", "town", variant))
    towns = np.array(["north", "south", "harbour", "hill"])
    worth = dict(zip(towns, random.normal(0, 30, 4), strict=True))
    town = random.choice(towns, _MOST_ROWS)
    size, age = random.uniform(30, 200, _MOST_ROWS), random.uniform(0, 90, _MOST_ROWS)
    price = 2 * size - age + np.array([worth[one] for one in town])
    noisy = price + random.normal(0, 15, _MOST_ROWS)
    return pd.DataFrame({"size": size, "age": age, "town": town, "price": noisy})


def _twins(variant: int) -> pd.DataFrame:
    """Two targets that share their features."""
    random = np.random.default_rng(ids.derive_seed("task", "twins", variant))
    features = random.normal(0, 1, (_MOST_ROWS, 5))
    targets = features @ random.normal(0, 3, (5, 2)) + random.normal(0, 1, (_MOST_ROWS, 2))
    frame = pd.DataFrame(features, columns=[f"x{k + 1}" for k in range(5)])
    return frame.assign(first=targets[:, 0], second=targets[:, 1])


_rows = {"n_samples": _MOST_ROWS}
_blobs = partial(datasets.make_blobs, **_rows, centers=4, n_features=3, cluster_std=3.0)
_moons = partial(datasets.make_moons, **_rows, noise=0.3)
_circles = partial(datasets.make_circles, **_rows, noise=0.15, factor=0.5)
_friedman1 = partial(datasets.make_friedman1, **_rows, n_features=6, noise=1.0)
_friedman3 = partial(datasets.make_friedman3, **_rows, noise=0.1)
_Classes = partial(Recipe, task_type="classification", metric="accuracy")
_Numbers = partial(Recipe, task_type="regression", metric="rmse")


def _by_seed(draw: Callable[..., Any]) -> Callable[[int], tuple[Any, Any]]:
    return lambda seed: draw(random_state=seed)


RECIPES: Sequence[Recipe] = (
    _Classes(
        name="iris",
        targets=("species",),
        make=_bundled(datasets.load_iris, "species"),
        held_out=False,
        variants=1,
    ),
    _Classes(
        name="breast_cancer",
        targets=("diagnosis",),
        metric="f1",
        make=_bundled(datasets.load_breast_cancer, "diagnosis"),
        held_out=False,
        id_column="patient",
        variants=1,
    ),
    _Classes(
        name="blobs",
        targets=("group",),
        make=_generated("blobs", _by_seed(_blobs), "group", ("ash", "birch", "cedar", "elm")),
        held_out=False,
        missing=True,
    ),
    _Classes(
        name="moons",
        targets=("side",),
        metric="roc_auc",
        make=_generated("moons", _by_seed(_moons), "side"),
        held_out=False,
        id_column="row_id",
    ),
    _Numbers(
        name="diabetes",
        targets=("progression",),
        make=_bundled(datasets.load_diabetes, "progression"),
        held_out=False,
        variants=1,
    ),
    _Numbers(
        name="friedman1",
        targets=("y",),
        make=_generated("friedman1", _by_seed(_friedman1), "y"),
        held_out=False,
        missing=True,
    ),
    _Numbers(name="town", targets=("price",), metric="mae", make=_town, held_out=False),
    _Numbers(
        name="twins", targets=("first", "second"), metric="mcrmse", make=_twins, held_out=False
    ),
    _Classes(
        name="wine",
        targets=("cultivar",),
        make=_bundled(datasets.load_wine, "cultivar"),
        held_out=True,
        variants=1,
    ),
    _Classes(
        name="digits",
        targets=("digit",),
        metric="f1_macro",
        make=_bundled(datasets.load_digits, "digit"),
        held_out=True,
        variants=1,
    ),
    _Classes(
        name="circles",
        targets=("ring",),
        metric="balanced_accuracy",
        make=_generated("circles", _by_seed(_circles), "ring", ("inner", "outer")),
        held_out=True,
        id_column="row_id",
    ),
    _Classes(
        name="shells",
        targets=("shell",),
        make=_generated("shells", _shells, "shell"),
        held_out=True,
        missing=True,
    ),
    _Numbers(
        name="linnerud",
        targets=("Weight", "Waist", "Pulse"),
        metric="mcrmse",
        make=_exercise,
        held_out=True,
        id_column="person",
        variants=1,
    ),
    _Numbers(
        name="friedman3",
        targets=("angle",),
        metric="r2",
        make=_generated("friedman3", _by_seed(_friedman3), "angle"),
        held_out=True,
    ),
    _Numbers(
        name="counts",
        targets=("visits",),
        metric="rmsle",
        make=_generated("counts", _counts, "visits"),
        held_out=True,
        missing=True,
    ),
)


def tabular_problems(config: ProblemsConfig) -> TaskProblems:
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


def _prepared(recipe: Recipe, variant: int, random: Generator) -> pd.DataFrame:
    """Shuffled and cut to size, with ids that tell nothing, and holes where there should be."""
    frame = recipe.make(variant)
    frame = frame.iloc[random.permutation(len(frame))[:_MOST_ROWS]].reset_index(drop=True)
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
