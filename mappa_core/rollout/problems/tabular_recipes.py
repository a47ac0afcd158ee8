"""The data behind the bundled prediction tasks: scikit-learn's data sets and seeded generators.

    to learn from                                  held out (other data, other generators)
    iris, breast_cancer, blobs, moons              wine, digits, circles, shells    classification
    diabetes, friedman1, town, twins               linnerud, friedman3, counts      regression

Among them are string labels, several targets, missing values, categories, and id columns of several
names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets

ROWS = 300
"""Rows of a generated table; a bundled one is cut to as many."""
_OF_NUMBERS = frozenset({"rmse", "mae", "mcrmse", "r2", "rmsle"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One kind of task."""

    name: str
    targets: tuple[str, ...]
    metric: str
    make: Callable[[int], pd.DataFrame]
    """Features and targets, from the seed of a variant."""
    held_out: bool = False
    id_column: str = "id"
    variants: int | None = None
    """How many there are; None for a generator, which has no end."""
    missing: bool = False

    @property
    def task_type(self) -> str:
        """`classification` or `regression`, as the metric has it."""
        return "regression" if self.metric in _OF_NUMBERS else "classification"


def _bundled(
    name: str, target: str, metric: str, load: Callable[[], Any], *, id_column: str = "id"
) -> Recipe:
    """One of scikit-learn's data sets, with one target."""

    def make(_: int) -> pd.DataFrame:
        bunch = load()
        names = [str(name).split(" (")[0].replace(" ", "_") for name in bunch.feature_names]
        frame = pd.DataFrame(bunch.data, columns=names)
        labels = getattr(bunch, "target_names", None)
        frame[target] = bunch.target if labels is None else np.asarray(labels)[bunch.target]
        return frame

    return Recipe(
        name=name, targets=(target,), metric=metric, make=make, id_column=id_column, variants=1
    )


def _generated(
    name: str,
    target: str,
    metric: str,
    draw: Callable[..., Any],
    *,
    labels: Sequence[str] = (),
    id_column: str = "id",
    missing: bool = False,
) -> Recipe:
    """What `draw(random_state=...)` gives, features and one target, told by `labels`."""

    def make(seed: int) -> pd.DataFrame:
        features, values = draw(random_state=seed)
        frame = pd.DataFrame(features, columns=[f"x{k + 1}" for k in range(features.shape[1])])
        frame[target] = np.asarray(labels)[values] if labels else values
        return frame

    return Recipe(
        name=name,
        targets=(target,),
        metric=metric,
        make=make,
        id_column=id_column,
        missing=missing,
    )


def _exercise(_: int) -> pd.DataFrame:
    """Linnerud: three exercises, three measures of the body, twenty people."""
    bunch: Any = datasets.load_linnerud()
    features = pd.DataFrame(bunch.data, columns=bunch.feature_names)
    return features.join(pd.DataFrame(bunch.target, columns=bunch.target_names))


def _counts(random_state: int) -> tuple[Any, Any]:
    random = np.random.default_rng(random_state)
    features = random.uniform(0, 1, (ROWS, 4))
    rate = np.exp(1 + 2 * features[:, 0] - features[:, 1] + features[:, 2] * features[:, 3])
    return features, random.poisson(rate)


def _town(seed: int) -> pd.DataFrame:
    """Prices that depend on size, age and a category."""
    random = np.random.default_rng(seed)
    towns = np.array(["north", "south", "harbour", "hill"])
    worth = dict(zip(towns, random.normal(0, 30, 4), strict=True))
    town = random.choice(towns, ROWS)
    size, age = random.uniform(30, 200, ROWS), random.uniform(0, 90, ROWS)
    price = 2 * size - age + np.array([worth[one] for one in town])
    noisy = price + random.normal(0, 15, ROWS)
    return pd.DataFrame({"size": size, "age": age, "town": town, "price": noisy})


def _twins(seed: int) -> pd.DataFrame:
    """Two targets that share their features."""
    random = np.random.default_rng(seed)
    features = random.normal(0, 1, (ROWS, 5))
    targets = features @ random.normal(0, 3, (5, 2)) + random.normal(0, 1, (ROWS, 2))
    frame = pd.DataFrame(features, columns=[f"x{k + 1}" for k in range(5)])
    return frame.assign(first=targets[:, 0], second=targets[:, 1])


_rows = {"n_samples": ROWS}
_blobs = partial(datasets.make_blobs, **_rows, centers=4, n_features=3, cluster_std=3.0)
_moons = partial(datasets.make_moons, **_rows, noise=0.3)
_circles = partial(datasets.make_circles, **_rows, noise=0.15, factor=0.5)
_shells = partial(datasets.make_gaussian_quantiles, **_rows, n_features=3, n_classes=3)
_friedman1 = partial(datasets.make_friedman1, **_rows, n_features=6, noise=1.0)
_friedman3 = partial(datasets.make_friedman3, **_rows, noise=0.1)
_trees = ("ash", "birch", "cedar", "elm")

_TRAINING = (
    _bundled("iris", "species", "accuracy", datasets.load_iris),
    _bundled("breast_cancer", "diagnosis", "f1", datasets.load_breast_cancer, id_column="patient"),
    _generated("blobs", "group", "accuracy", _blobs, labels=_trees, missing=True),
    _generated("moons", "side", "roc_auc", _moons, id_column="row_id"),
    _bundled("diabetes", "progression", "rmse", datasets.load_diabetes),
    _generated("friedman1", "y", "rmse", _friedman1, missing=True),
    Recipe(name="town", targets=("price",), metric="mae", make=_town),
    Recipe(name="twins", targets=("first", "second"), metric="mcrmse", make=_twins),
)
_HELD_OUT = (
    _bundled("wine", "cultivar", "accuracy", datasets.load_wine),
    _bundled("digits", "digit", "f1_macro", datasets.load_digits),
    _generated(
        "circles",
        "ring",
        "balanced_accuracy",
        _circles,
        labels=("inner", "outer"),
        id_column="row_id",
    ),
    _generated("shells", "shell", "accuracy", _shells, missing=True),
    Recipe(
        name="linnerud",
        targets=("Weight", "Waist", "Pulse"),
        metric="mcrmse",
        make=_exercise,
        id_column="person",
        variants=1,
    ),
    _generated("friedman3", "angle", "r2", _friedman3),
    _generated("counts", "visits", "rmsle", _counts, missing=True),
)
RECIPES: Sequence[Recipe] = (
    *_TRAINING,
    *(replace(recipe, held_out=True) for recipe in _HELD_OUT),
)
