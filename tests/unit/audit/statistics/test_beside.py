"""Coach minus people by task type and agent: by hand, and its coverage with few labels."""

import dataclasses

import numpy as np
import pytest

from mappa_core.audit.frame import Factor, LabelledScores
from mappa_core.audit.statistics.beside import Difference, TooFewLabels, differences

NAN = float("nan")


def compared(
    scores: list[float], labels: list[float], kinds: list[str], agents: list[str]
) -> LabelledScores:
    return LabelledScores(
        scores=np.array(scores),
        labels=np.array(labels),
        problem=Factor.of([str(number) for number in range(len(scores))]),
        task_type=Factor.of(kinds),
        agent=Factor.of(agents),
        at_random=np.zeros(len(scores), dtype=bool),
        sampled=~np.isnan(np.array(labels)),
    )


def by_name(data: LabelledScores) -> dict[str, Difference]:
    known = (found for found in differences(data) if isinstance(found, Difference))
    return {found.domain.name: found for found in known}


def test_differences_by_hand() -> None:
    found = by_name(
        compared(
            [5, 7, 6, 8, 4, 4],
            [4, 6, NAN, NAN, 6, 4],
            ["a", "a", "a", "a", "b", "b"],
            ["one"] * 6,
        )
    )
    # The difference is 1 whatever the score, so that scores tell nothing about it.
    assert (found["a"].estimate.value, found["a"].trust, found["a"].labels) == (1.0, 0.0, 2)
    assert found["b"].estimate.value == -1.0
    assert found["a rather than b"].estimate.value == 2.0
    # One agent: nothing is said by agent.
    assert set(found) == {"a", "b", "a rather than b"}


def test_a_cell_without_labels_is_named_in_its_domains() -> None:
    agents = ["one", "one", "two", "two", "one", "one"]
    kinds = ["a", "a", "a", "a", "b", "b"]
    data = compared([5.0] * 6, [4, 4, NAN, 4, 4, 4], kinds, agents)
    assert set(by_name(data)) == {"b", "one", "one on a", "one on b"}
    short = {f.domain.name: f for f in differences(data) if isinstance(f, TooFewLabels)}
    assert set(short) == {"a", "a rather than b", "two", "two on a"}
    assert (short["a"].cells, short["a"].labels, short["a"].actions) == (("two on a",), 3, 4)
    assert not list(differences(compared([5.0] * 6, [NAN] * 6, kinds, agents)))


def test_labels_on_one_problem_show_no_spread_between_problems() -> None:
    data = compared([5, 7, 6, 8], [4, 6, 5, 5], ["a", "a", "b", "b"], ["one"] * 4)
    alike = Factor.of(["1", "2", "3", "3"])
    found = by_name(dataclasses.replace(data, problem=alike))["a rather than b"]
    assert found.estimate.interval() == (-np.inf, np.inf)


def world(rng: np.random.Generator, labels: int, rare: int | None = None) -> LabelledScores:
    """1,200 actions of two types, so many labels of each; the coach gives type a, the rare one, 0.8
    more than people do, and spreads good and bad work half as far again."""
    kind = (rng.random(1_200) < 0.25).astype(int)
    problem = rng.integers(100, size=1_200) * 2 + kind
    worth = rng.normal(0, 0.7, 200)[problem] + rng.normal(5, 1.2, 1_200) - kind
    scores = 5 + 1.5 * (worth - 5) + 0.8 * kind + rng.normal(0, 0.4, 1_200)
    given = np.full(1_200, NAN)
    for code, number in enumerate((labels, labels if rare is None else rare)):
        drawn = rng.permutation(np.flatnonzero(kind == code))[:number]
        given[drawn] = worth[drawn] + rng.normal(0, 0.4, number)
    return LabelledScores(
        scores=scores,
        labels=given,
        problem=Factor(codes=problem, names=tuple(map(str, range(200)))),
        task_type=Factor(codes=kind, names=("b", "a")),
        agent=Factor(codes=np.zeros(1_200, dtype=np.int64), names=("one",)),
        at_random=np.zeros(1_200, dtype=bool),
        sampled=~np.isnan(given),
    )


def test_the_contrast_is_covered_with_three_labels_of_each_type() -> None:
    """What is taken of the scores is fitted to them too: as if it were known, 89 % are covered."""
    rng, hits, runs = np.random.default_rng(3), 0, 700
    for _ in range(runs):
        low, high = by_name(world(rng, 3))["b rather than a"].estimate.interval()
        hits += low <= -0.3 <= high
    assert 0.915 * runs <= hits <= 0.97 * runs


def test_the_contrast_is_covered_with_sixty_labels_of_one_type_and_three_of_the_other() -> None:
    """With degrees of freedom pooled over the types 81 % are."""
    rng, hits, runs = np.random.default_rng(60), 0, 500
    for _ in range(runs):
        low, high = by_name(world(rng, 60, 3))["b rather than a"].estimate.interval()
        hits += low <= -0.3 <= high
    assert 0.92 * runs <= hits <= 0.98 * runs


@pytest.mark.parametrize("labels", [12, 40])
def test_the_contrast_of_types_is_covered_and_narrower_than_labels_alone(labels: int) -> None:
    # Truth: b lies 0.5 * 0 above people on average, a 0.5 * -1 + 0.8.
    rng, hits, runs = np.random.default_rng(labels), 0, 300
    powered, plain = np.zeros(runs), np.zeros(runs)
    for run in range(runs):
        data = world(rng, labels)
        found = by_name(data)["b rather than a"]
        low, high = found.estimate.interval()
        hits += low <= -0.3 <= high
        apart = (data.scores - data.labels)[data.sampled]
        kinds = data.task_type.codes[data.sampled]
        powered[run] = found.estimate.value
        plain[run] = apart[kinds == 0].mean() - apart[kinds == 1].mean()
    # The standard error of a coverage of 0.95 is 0.013.
    assert 0.91 * runs <= hits <= 0.985 * runs
    assert powered.mean() == pytest.approx(-0.3, abs=0.06)
    assert powered.std() < 0.85 * plain.std()
