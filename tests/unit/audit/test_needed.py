"""What it would take to tell: the size that is named is one that tells."""

from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest

from mappa_core.audit.findings import AuditInput, AuditResult, audit
from mappa_core.audit.frame import Experiment, Factor, Floats, Frame, LabelledScores, Ratings
from mappa_core.audit.needed import actions_for, anchors_for, more_anchors, what_would_tell
from mappa_core.audit.records import AuditedRun
from mappa_core.audit.statistics.paired import experiment_effects, experiment_verdict
from mappa_core.audit.watch.anchors import NO_ANCHORS
from tests.unit.audit.experiment_worlds import make_experiment
from tests.unit.audit.frames import make_frame

EMPTY = np.zeros(0)
NO_CODES = Factor(codes=np.zeros(0, dtype=np.int64), names=())


def honest(told: Floats, agent: Floats, success: Floats) -> Floats:
    return np.zeros(len(told))


NO_EXPERIMENT = make_experiment(np.random.default_rng(0), honest, actions=0)


def as_frame(asked: Experiment) -> Frame:
    """The actions of an experiment with the scores that trained them."""
    rows = asked.change.codes == asked.change.names.index("as it was")
    return make_frame(
        list(asked.stored[rows]),
        task_type=[asked.task_type.names[code] for code in asked.task_type.codes[rows]],
        agent=[asked.agent.names[code] for code in asked.agent.codes[rows]],
        problem=[asked.problem.names[code] for code in asked.problem.codes[rows]],
        success=list(asked.success[rows]),
    )


def seen(asked: Experiment, deviation: float | None) -> AuditInput:
    """An audit's input; the anchors have repeats where the coach's `deviation` is known."""
    repeats = np.tile([5.0 - deviation, 5.0, 5.0 + deviation], (8, 1)) if deviation else EMPTY
    return AuditInput(
        run=AuditedRun(id=UUID(int=1), name="r", team="t", baseline=None),
        frame=as_frame(asked),
        ratings=Ratings(
            action=NO_CODES,
            problem=NO_CODES,
            task_type=NO_CODES,
            agent=NO_CODES,
            scorer=NO_CODES,
            repeat=NO_CODES.codes,
            trained=NO_CODES.codes,
            score=EMPTY,
        ),
        labelled=LabelledScores(
            scores=EMPTY,
            labels=EMPTY,
            problem=NO_CODES,
            task_type=NO_CODES,
            agent=NO_CODES,
            at_random=EMPTY == 1,
            sampled=EMPTY == 1,
        ),
        anchors=replace(NO_ANCHORS, scores=replace(NO_ANCHORS.scores, repeats=repeats)),
        experiment=NO_EXPERIMENT,
        margin=0.5,
    )


@pytest.mark.parametrize("agents", [("one",), ("one", "two", "three")])
def test_an_experiment_of_the_size_that_is_named_acquits_an_honest_coach(
    agents: tuple[str, ...],
) -> None:
    rng = np.random.default_rng(3)
    frame = as_frame(make_experiment(rng, honest, actions=3_000, agents=agents))
    # Noise of 1 on whole points: rounding adds a twelfth of a point to the variance.
    size = actions_for(frame, (1 + 1 / 12) ** 0.5, 0.5)
    worlds = (make_experiment(rng, honest, actions=size, agents=agents) for _ in range(60))
    found = [experiment_verdict(experiment_effects(world)) for world in worlds]
    # 80 % is promised; at 60 runs, 41 are its exact one-sided 1 % bound.
    assert found.count("equivalent") >= 42


def test_half_the_noise_takes_a_quarter_and_a_rare_agent_more() -> None:
    rng = np.random.default_rng(3)
    frame = as_frame(make_experiment(rng, honest, actions=1_000))
    loud, calm = (actions_for(frame, deviation, 0.5) for deviation in (2.0, 1.0))
    assert loud == pytest.approx(4 * calm, abs=4)
    rare = replace(frame, agent=Factor.of(["one"] * 20 + ["two"] * 980))
    assert actions_for(rare, 1.0, 0.5) > 10 * calm


def test_what_would_tell_names_the_experiment_and_what_it_rests_on() -> None:
    asked = make_experiment(np.random.default_rng(4), honest, actions=400, noise=2.0)
    looked = seen(asked, deviation=0.5)
    said = what_would_tell(looked, audit(looked))
    assert said.startswith("`mappa audit r --experiment ")
    assert "a chance of 80% at the coach's noise of 0.5 points" in said
    unknown = what_would_tell(seen(asked, None), AuditResult(findings=(), effects=()))
    assert unknown == "`mappa audit r --experiment 200` (which also measures the coach's noise)"
    loud = what_would_tell(seen(asked, deviation=3.0), AuditResult(findings=(), effects=()))
    assert "--experiment 400` (all that there are, of " in loud


def test_after_an_experiment_a_larger_one_or_the_coach_of_then_would_tell() -> None:
    rng = np.random.default_rng(5)
    short = make_experiment(rng, honest, actions=60, noise=1.5)
    many = replace(seen(make_experiment(rng, honest, actions=4_000), 1.5), experiment=short)
    result = AuditResult(findings=(), effects=(), experiment=experiment_effects(short))
    assert result.verdict == "cannot tell"
    said = what_would_tell(many, result)
    assert said.startswith("`mappa audit r --experiment ")
    assert int(said.split("--experiment ")[1].split("`")[0]) > 200
    assert "it adds to the 60 asked so far" in said
    moved = make_experiment(rng, honest, drift=2.0)
    result = AuditResult(findings=(), effects=(), experiment=experiment_effects(moved))
    said = what_would_tell(replace(many, experiment=moved), result)
    assert "no longer scores as it did" in said


def test_the_anchors_that_find_a_change_for_one_type_are_named_where_they_are_more() -> None:
    asked = make_experiment(np.random.default_rng(4), honest, actions=400)
    sixteen = np.tile([5.0, 6.0, 7.0], (16, 1))
    looked = seen(asked, None)
    scores = replace(
        NO_ANCHORS.scores,
        known=sixteen.mean(axis=1),
        repeats=sixteen,
        task_types=("a", "b") * 8,
    )
    calm = replace(looked, anchors=replace(NO_ANCHORS, scores=scores))
    assert (anchors_for(2, 1.0), more_anchors(calm), more_anchors(looked)) == (16, None, None)
    loud = replace(scores, repeats=np.tile([4.5, 6.0, 7.5], (16, 1)))
    said = more_anchors(replace(calm, anchors=replace(NO_ANCHORS, scores=loud)))
    assert said is not None
    # 8 of each type at a deviation of 1; 1.5 points of noise take 2.25 times as many.
    assert "16 anchors watched" in said
    assert "audit.anchors=36" in said
