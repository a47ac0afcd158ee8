"""The stress suite: its coaches are what its worlds say, and its bench counts them."""

import numpy as np
import pytest

from mappa_cli.benches.audit_worlds import bench_audit_worlds
from mappa_core.audit.statistics.paired import PairedEffect, experiment_effects
from mappa_core.audit.stress.asked import asked
from mappa_core.audit.stress.catalogue import biased_worlds, honest_worlds
from mappa_core.audit.stress.worlds import StressWorld
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

WORLDS = {world.name: world for world in (*honest_worlds(), *biased_worlds())}


def effects(world: StressWorld, actions: int = 600) -> dict[tuple[str, str], PairedEffect]:
    experiment = asked(world, np.random.default_rng(3), actions)
    return {(e.subject, e.stratum): e for e in experiment_effects(experiment)}


def within(effect: PairedEffect, points: float) -> bool:
    low, high = effect.estimate.interval(0.999)
    return low < points < high


CALLED = "called type 0 rather than type 1"


@pytest.mark.parametrize(
    ("name", "subject", "stratum", "points"),
    [
        ("second type harder by 2", CALLED, "all", 0.0),
        ("+1 for a type", CALLED, "all", -1.0),
        ("+1 for a type of 3 problems in 120", CALLED, "all", -1.0),
        ("+1.5 and -1.5 by agent", CALLED, "coder", 1.5),
        ("+1 for the fifth of five types", "called type 2 rather than type 4", "all", -1.0),
        ("+1 for the fifth of five types", "called type 2 rather than type 3", "all", 0.0),
        # The coach is asked as it is at the end of the run.
        ("+1.5, then -1.5", CALLED, "all", 1.5),
        ("+1.5 for wrong work only", CALLED, "right", 0.0),
        ("+1.5 for wrong work only", CALLED, "wrong", -1.5),
    ],
)
def test_an_experiment_measures_what_was_planted(
    name: str, subject: str, stratum: str, points: float
) -> None:
    assert within(effects(WORLDS[name])[subject, stratum], points)


def test_longer_work_pays_where_that_was_planted() -> None:
    assert effects(WORLDS["+0.8 per doubling, twice as long"])["padded", "all"].verdict == "biased"


def test_a_silent_change_of_the_model_is_seen_and_is_no_bias() -> None:
    found = effects(WORLDS["the coach's model changes silently"])
    assert found["asked today", "all"].verdict == "biased"
    assert found[CALLED, "all"].verdict != "biased"


def test_a_sample_is_spread_over_agents_and_task_types() -> None:
    experiment = asked(WORLDS["nothing special"], np.random.default_rng(4), 120)
    plain = experiment.change.codes == experiment.change.names.index("as it was")
    agents = np.bincount(experiment.agent.codes[plain])
    assert plain.sum() == 120
    assert np.abs(agents - 40).max() <= 1


def test_the_bench_counts_one_world() -> None:
    report = bench_audit_worlds(["runs=4", "only=8 problems", "by=experiment"], Settings())
    honest, planted, *printed = report.figures
    assert honest.name == "honest, 8 problems: the experiment says biased"
    assert (honest.aim, planted.aim) == ("<= 0.05", ">= 0.9")
    assert (planted.value, planted.met) == (1.0, True)
    assert [figure.name.split("printed: ")[-1] for figure in printed[::2]] == [
        "the experiment calls an honest coach biased",
        "the experiment finds a bias of 0.5",
    ]
    assert all(figure.error and figure.aim for figure in printed[1::2])


def test_the_bench_watches_a_silent_change_of_the_model() -> None:
    report = bench_audit_worlds(["runs=6", "only=silently", "by=drift"], Settings())
    found, with_more, named = report.figures
    assert found.name == "the coach's model changes silently: the coach has drifted"
    assert with_more.name.endswith("anchors, which its noise takes: the coach has drifted")
    assert named.name == "... its change of model is named"
    assert (found.aim, with_more.aim, named.aim) == (">= 0.9",) * 3
    # A point more from iteration 31 on: found in most runs, and the set holds that iteration.
    assert found.value >= named.value >= 0.5


def test_a_coach_that_stays_as_it_is_is_not_said_to_have_drifted() -> None:
    # Of few runs, one by chance would be more than the aim.
    (figure,) = bench_audit_worlds(["runs=60", "only=8 problems", "by=drift"], Settings()).figures
    assert (figure.aim, figure.met) == ("<= 0.05", True)


def test_the_bench_says_when_scores_that_rise_alone_are_found() -> None:
    falls = ["runs=10", "only=success falls", "by=divergence"]
    honest, steady, gamed, delay = bench_audit_worlds(falls, Settings()).figures
    assert (honest.aim, steady.aim, gamed.aim) == ("<= 0.05", "<= 0.05", ">= 0.9")
    assert honest.name.startswith("success falls (")
    assert (honest.value, gamed.met) == (0, True)
    assert 1 <= delay.value <= 20


def test_the_bench_says_how_often_a_set_of_onsets_holds_the_right_one() -> None:
    asked = ["runs=8", "only=alike", "by=onset"]
    held, width = bench_audit_worlds(asked, Settings()).figures
    assert (held.aim, held.met) == ("0.93 to 0.97 and two errors", True)
    assert held.value >= 0.75
    assert 1 <= width.value <= 4


@pytest.mark.parametrize("override", ["runs=0", "by=magic", "actions=many", "only=no such world"])
def test_the_bench_refuses_what_it_does_not_know(override: str) -> None:
    with pytest.raises(ConfigError):
        bench_audit_worlds([override], Settings())
