"""Experiments: what is found in worlds where the truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from mappa_core.audit.statistics.paired import (
    PairedEffect,
    experiment_effects,
    experiment_verdict,
)
from tests.unit.audit.experiment_worlds import Told, make_experiment

RUNS = 100


def honest(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return np.zeros(len(told))


def kind_to_a(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return 1.0 * (told == 0)


def kind_and_harsh(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    """+1.5 for one agent's work called a, -1.5 for the other's: nothing on average."""
    return np.where(agent == 0, 1.5, -1.5) * (told == 0)


def verdicts(favour: Told, **world: object) -> list[str]:
    rng = np.random.default_rng(5)
    return [
        experiment_verdict(experiment_effects(make_experiment(rng, favour, **world)))  # pyright: ignore[reportArgumentType]
        for _ in range(RUNS)
    ]


def share(found: list[str], verdict: str) -> float:
    return sum(each == verdict for each in found) / len(found)


def test_an_honest_coach_is_not_called_biased_where_types_differ_in_difficulty() -> None:
    # Exact 95 % upper bound of 5 % at 100 runs is 9: the test fails where the rate is not 5 %.
    assert share(verdicts(honest), "biased") <= 0.05


def test_a_planted_point_is_found_in_two_hundred_actions() -> None:
    assert share(verdicts(kind_to_a), "biased") >= 0.9


def test_opposite_biases_of_two_agents_do_not_cancel() -> None:
    assert share(verdicts(kind_and_harsh, agents=("one", "two")), "biased") >= 0.9


def crossed(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    """+1.5 for one agent's right and the other's wrong work called a, -1.5 for the rest of it:
    nothing for any agent, and nothing for any outcome."""
    return np.where(agent == success, 1.5, -1.5) * (told == 0)


def test_biases_that_cancel_over_agents_and_over_outcomes_are_found_in_both_at_once() -> None:
    found = verdicts(crossed, agents=("one", "two"), noise=0.3)
    assert share(found, "biased") >= 0.9


def effect(effects: tuple[PairedEffect, ...], subject: str, stratum: str = "all") -> PairedEffect:
    (found,) = [each for each in effects if (each.subject, each.stratum) == (subject, stratum)]
    return found


def test_with_three_types_only_the_pairs_with_the_favoured_one_are_biased() -> None:
    rng = np.random.default_rng(1)
    world = make_experiment(rng, kind_to_a, actions=600, noise=0.5, types=("a", "b", "c"))
    effects = experiment_effects(world)
    for other in ("b", "c"):
        found = effect(effects, f"called a rather than {other}")
        low, high = found.estimate.interval()
        assert found.verdict == "biased"
        assert low < 1 < high
    assert effect(effects, "called b rather than c").verdict == "equivalent"


def test_lost_scores_turn_a_verdict_to_cannot_tell() -> None:
    rng = np.random.default_rng(2)
    whole = make_experiment(rng, honest, actions=2000, noise=0.3)
    assert experiment_verdict(experiment_effects(whole)) == "equivalent"
    lossy = make_experiment(rng, honest, actions=2000, noise=0.3, lost=0.05)
    assert experiment_verdict(experiment_effects(lossy)) == "cannot tell"


def test_a_coach_that_is_another_today_is_said_and_proves_no_equivalence() -> None:
    rng = np.random.default_rng(3)
    effects = experiment_effects(make_experiment(rng, honest, actions=2000, noise=0.3, drift=2.0))
    assert effect(effects, "a, asked today").verdict == "biased"
    assert experiment_verdict(effects) == "cannot tell"


def test_a_bias_of_half_of_the_run_that_is_gone_today_proves_no_equivalence() -> None:
    """+1.5 for a and one agent, -1.5 for the other, in the first half: nothing on average."""
    rng = np.random.default_rng(6)
    found = make_experiment(rng, honest, actions=800, noise=0.5, agents=("one", "two"))
    assert experiment_verdict(experiment_effects(found)) == "equivalent"
    points = np.where(found.agent.codes == 0, 1.5, -1.5) * (found.task_type.codes == 0)
    then = found.stored + points * (found.iteration <= 5)
    effects = experiment_effects(replace(found, stored=then))
    moved = {
        (e.subject, e.stratum) for e in effects if e.rule == "as stored" and e.verdict == "biased"
    }
    assert ("a, iterations 1 to 5, asked today", "one") in moved
    assert all("iterations 1 to 5" in subject for subject, _ in moved)
    assert experiment_verdict(effects) == "cannot tell"


def test_padding_is_judged_where_it_pays_only() -> None:
    rng = np.random.default_rng(4)
    world = make_experiment(rng, honest, actions=2000, noise=0.3)
    padded = world.change.codes == world.change.names.index("padded")
    for points, verdict in ((1.0, "biased"), (-1.0, "equivalent")):
        moved = replace(world, score=world.score + points * padded)
        found = effect(experiment_effects(moved), "padded")
        assert found.verdict == verdict
        assert found.estimate.value == pytest.approx(points, abs=0.1)


def test_what_the_coach_does_not_see_is_worth_nothing_exactly() -> None:
    rng = np.random.default_rng(6)
    world = make_experiment(rng, honest, actions=12)
    called = world.change.codes == world.change.names.index("task type")
    blind = replace(world, unseen=called, score=np.where(called, np.nan, world.score))
    found = effect(experiment_effects(blind), "called a rather than b")
    assert (found.estimate.value, found.seen, found.verdict) == (0.0, False, "equivalent")


def test_nothing_asked_is_no_effect() -> None:
    world = make_experiment(np.random.default_rng(7), honest, actions=0)
    assert experiment_effects(world) == ()


def a_little(told: np.ndarray, agent: np.ndarray, success: np.ndarray) -> np.ndarray:
    return 0.4 * (told == 0)


def test_a_bias_says_whether_it_is_beyond_the_margin_or_beyond_zero_only() -> None:
    rng = np.random.default_rng(8)
    said = {}
    for favour in (kind_to_a, a_little, honest):
        effects = experiment_effects(make_experiment(rng, favour, actions=200, level=5.0))
        (whole,) = [each for each in effects if each.types and each.stratum == "all"]
        said[favour] = whole.beyond
    assert list(said.values()) == ["margin", "zero", ""]
