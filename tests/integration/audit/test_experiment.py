"""`mappa audit RUN --experiment N`: the coach that trained is asked again, one thing changed."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import psycopg
import pytest
from typer.testing import CliRunner, Result

from mappa_cli.main import app
from mappa_core.app.config import TrainConfig
from mappa_core.audit.experiments.asking import ask, plan_experiment
from mappa_core.audit.experiments.changes import Asker
from mappa_core.audit.run_audit import RunAudit, audit_run
from mappa_core.audit.statistics.paired import PairedEffect
from mappa_core.audit.store import AuditStore
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.opening import ProbeCoaches
from mappa_core.coach.protocols import Coach
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.coach.scoring import ScorePlan, score_episode
from mappa_core.coach.told import scorer_rubric
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored
from mappa_core.rollout.problems import problem_source
from mappa_core.store.connection import for_psql
from mappa_core.store.store import Store
from tests.builders import make_episode, make_policy, make_run, make_score, make_turn
from tests.integration.audit.conftest import record

PROBLEMS, ACTIONS = 30, 60
RUN = make_run("asked-1")
Mappa = Callable[..., Result]


def play(store: Store, score: Callable[[Episode], None], **coach: object) -> None:
    """A run of a solver that boxes what is wrong, a word or nothing, on the bundled problems."""
    config = TrainConfig.model_validate({"team": "single", "coach": coach})
    run = replace(RUN, team="single", config=config.model_dump(mode="json"))
    store.runs.add_run(run)
    policy = make_policy(run)
    store.policies.add_policy_version(policy)
    for number, problem in enumerate(problem_source(config.problems).train()[:PROBLEMS]):
        store.episodes.add_problems([problem])
        for rollout in range(ACTIONS // PROBLEMS):
            episode = make_episode(run, problem, rollout_index=rollout)
            text = ("I add.\nSo \\boxed{1}.", "Well.\n\\boxed{many}", "I wonder.")[number % 3]
            turns = [make_turn(policy, text=text)]
            score(record(store, episode, turns, success=number % 4 == 0))


def scored_by(coach: Coach, store: Store) -> Callable[[Episode], None]:
    plan = ScorePlan(coach=coach)
    return lambda episode: void(asyncio.run(score_episode(episode, plan=plan, store=store)))


def void(_: object) -> None:
    return None


@pytest.fixture
def mappa(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Mappa:
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    monkeypatch.setenv("GOOGLE_API_KEY", "very-secret")

    def call(*arguments: str, keys: str | None = None) -> Result:
        command = ["audit", RUN.name, "--simulations", "0", *arguments]
        result = CliRunner().invoke(app, command, input=keys)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return call


def test_the_rule_coach_does_not_see_the_label_and_is_not_asked_about_it(
    mappa: Mappa, store: Store, database_url: str
) -> None:
    play(store, scored_by(RuleCoach("single"), store))
    before = mappa()
    assert "rests on a regression alone" in before.stdout
    result = mappa("--experiment", "40", "--json")
    unseen = "task type, rubric order, agent name, outcome hidden, told right, told wrong"
    assert f"does not see it: {unseen}" in result.stderr.replace("\n", " ")
    assert "40 actions of asked-1" in result.stderr
    said = json.loads(result.stdout)
    assert (said["experiment"], said["verdict"], result.exit_code) == (True, "equivalent", 0)
    found = [f for f in said["findings"] if f["kind"] == "experiment"]
    called = [f for f in found if f["subject"].startswith("called ")]
    assert called
    for finding in called:
        assert (finding["estimate"], finding["verdict"]) == (0.0, "equivalent")
        assert finding["detail"]["seen"] == "the coach does not see it"
    assert {f["verdict"] for f in found if f["subject"] == "asked today"} == {"as stored"}
    # What is stored is not asked again, and a larger sample adds to it.
    assert ": 0 questions asked" in mappa("--experiment", "40").stderr.replace("\n", " ")
    larger = mappa("--experiment", "1000").stderr.replace("\n", " ")
    assert f"{ACTIONS} actions of asked-1" in larger
    assert ": 0 questions asked" not in larger
    with psycopg.connect(for_psql(database_url)) as connection:
        query = (
            "SELECT count(DISTINCT action_id) FROM audit.experiment_scores "
            "WHERE change = 'as it was' AND NOT unseen"
        )
        assert connection.execute(query).fetchone() == (ACTIONS,)


class Favouring:
    """The rule coach, which gives one task type more as soon as it is called so."""

    def __init__(self, task_type: str, points: float) -> None:
        self._rules, self._task_type, self._points = RuleCoach("single"), task_type, points
        self.identity = self._rules.identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        score = await self._rules.score(case)
        assert isinstance(score, CoachScore)
        more = self._points * (case.task_type == self._task_type)
        return replace(score, value=min(score.value + more, 10.0))


def experimented(store: Store, coach: Coach, count: int = ACTIONS) -> RunAudit:
    audit = AuditStore(store.database)
    asker = Asker(coaches=ProbeCoaches(coach=coach), task_types=audit.task_types(RUN.id))
    job = plan_experiment(store, audit, RUN.id, asker, count)
    assert asyncio.run(ask(job, audit, asker, lambda _: None)) == 0
    return audit_run(audit, RUN.name, 0.5, record=True, simulations=0)


def test_a_bonus_planted_in_the_rule_coach_is_found_sized_and_corrected(
    mappa: Mappa, store: Store
) -> None:
    coach = Favouring("addition", 1.5)
    play(store, scored_by(coach, store))
    found = experimented(store, coach)
    assert found.result.verdict == "biased"
    effects = {
        effect.subject: effect for effect in found.result.experiment if effect.stratum == "all"
    }
    assert set(biased(effects)) == {
        "called addition rather than multiplication",
        "called addition rather than subtraction",
    }
    assert all(value == 1.5 for value in biased(effects).values())
    assert found.result.biased
    dated = {(f.subject, f.against) for f in found.result.findings if f.kind == "onset"}
    assert dated == {("addition", "multiplication"), ("addition", "subtraction")}
    said = json.loads(mappa("--debias", "--json").stdout)
    audit = AuditStore(store.database)
    correction = audit.correction(RUN.name)
    assert str(correction.id) == said["correction"]
    # Nothing of the outcome, which this coach does not see, and the types end up alike.
    assert {term.stratum for term in correction.terms} == {"all"}
    points = {term.task_type: round(term.points, 6) for term in correction.terms}
    assert points == {"addition": 1.0, "multiplication": -0.5, "subtraction": -0.5}
    assert effects["called multiplication rather than subtraction"].verdict == "equivalent"


def biased(effects: dict[str, PairedEffect]) -> dict[str, float]:
    return {
        subject: round(effect.estimate.value, 6)
        for subject, effect in effects.items()
        if effect.verdict == "biased"
    }


def test_another_rubric_than_the_run_had_is_refused(mappa: Mappa, store: Store) -> None:
    play(store, lambda episode: store.scores.add_scores([make_score(episode, 0, 5.0)]))
    with pytest.raises(ConfigError, match="put rubric and options of that coach back"):
        mappa("--experiment", "10")


@pytest.fixture
def stand_in() -> Iterator[str]:
    """A provider on this machine; yields its address."""
    command = [sys.executable, "-m", "mappa_cli.provider_stub", "--latency", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def test_a_coach_that_costs_money_is_asked_after_a_question(
    mappa: Mappa, store: Store, stand_in: str, database_url: str
) -> None:
    config = CoachModelConfig(backend="gemini", model="test-model")
    version, sha256 = scorer_rubric(load_rubrics("single", "paper-1"), config)
    identity = CoachIdentity(
        coach="gemini",
        model="test-model",
        model_version="test-model",
        rubric_version=version,
        rubric_sha256=sha256,
    )

    def stored(episode: Episode) -> None:
        store.scores.add_scores([make_score(episode, 0, 5.0, identity=identity)])

    play(store, stored, backend="gemini", model="test-model", base_url=stand_in)
    refused = mappa("--experiment", "10", keys="n\n")
    assert refused.exit_code == 1
    assert "calls" in refused.stderr
    mappa("--experiment", "10", "--yes")
    with psycopg.connect(for_psql(database_url)) as connection:
        query = "SELECT DISTINCT change FROM audit.experiment_scores WHERE unseen = %s"
        unseen = {row[0] for row in connection.execute(query, [True])}
        seen = {row[0] for row in connection.execute(query, [False])}
    # This run hides the outcome, so to hide it changes nothing.
    assert unseen == {"outcome hidden"}
    assert {"task type", "agent name", "rubric order", "padded", "told right"} <= seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--database", "postgresql://x"), "writes nothing"),
        (("--against", "rule"), "needs a RUN alone"),
    ],
)
def test_what_makes_no_sense_together_is_refused(
    mappa: Mappa, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        mappa("--experiment", "5", *arguments)
