"""The paper's scenario through `train`: a coach that favours one task type by its name.

Found, sized, dated and put down to the coach; with the correction the favoured type does not grow
faster than under a coach that favours none. Once with a random tiny model, which learns to speak in
one half of its vocabulary, and once with the quickstart's model, team and engines on two of its
task types. These runs are short; that the favoured type grows faster without the correction is seen
in tests/integration/audit/test_specialisation.py.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, open_services, use
from mappa_core.audit.corrections import store_correction
from mappa_core.audit.experiments.asking import ask, plan_experiment
from mappa_core.audit.experiments.changes import Asker
from mappa_core.audit.run_audit import RunAudit, audit_run
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.trends import growth
from mappa_core.audit.store import AuditStore
from mappa_core.coach.opening import ProbeCoaches
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Problem
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Unscored
from mappa_core.core.settings import Settings
from mappa_core.rollout.problems.base import FixedProblems
from mappa_core.rollout.protocols import ProblemSource
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import Monologue
from tests.favouring import assert_acquitted, assert_found

FAVOURED, OTHER = "addition", "multiplication"
CUES = {FAVOURED: "abcdefghij", OTHER: "klmnopqrst"}
POINTS = 1.5
BASELINE = {"estimator": "reinforce++"}
"""Of all actions: one of each problem's own takes a type's bias away, and nothing specialises."""
Open = Callable[[TrainConfig], AbstractAsyncContextManager[Services]]


class Favouring:
    """Another coach's points, halved, and some more for work that it is told is of one type."""

    def __init__(self, coach: Coach, points: float) -> None:
        self._coach, self._points = coach, points
        self.identity = coach.identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        score = await self._coach.score(case)
        if isinstance(score, Unscored):
            return score
        more = self._points * (case.task_type == FAVOURED)
        return replace(score, value=score.value / 2 + more)


class Scenario:
    """Three runs of one configuration: under a favouring coach, with its correction, under none."""

    def __init__(self, config: TrainConfig, opened: Open, asked: int) -> None:
        self._config, self._opened, self._asked = config, opened, asked

    async def played(self) -> None:
        """Play and audit the three runs, and compare what success did."""
        biased = await self._run("biased", POINTS)
        assert_found(biased.result, FAVOURED, POINTS, first=1)
        fair = await self._run("fair", 0.0)
        assert_acquitted(fair.result)
        corrected = await self._run("corrected", POINTS, correction=biased.seen.run.name)
        faster = rise(corrected).value - rise(fair).value
        error = (rise(corrected).standard_error ** 2 + rise(fair).standard_error ** 2) ** 0.5
        assert faster <= 2 * error

    async def _run(self, name: str, points: float, correction: str = "") -> RunAudit:
        watched = self._config.audit.model_copy(update={"correction": correction})
        config = self._config.model_copy(update={"name": name, "audit": watched})
        async with self._opened(config) as services:
            coach = Favouring(services.scoring_coach, points)
            with use(replace(services, coach=coach)):
                await train(config)
            assert services.audit is not None
            return await self._audited(name, coach, services.store, services.audit)

    async def _audited(self, name: str, coach: Coach, store: Store, audit: AuditStore) -> RunAudit:
        (run,) = [one for one in store.runs.list_runs() if one.config["name"] == name]
        asker = Asker(coaches=ProbeCoaches(coach=coach), task_types=audit.task_types(run.id))
        job = plan_experiment(store, audit, run.id, asker, self._asked)
        assert await ask(job, audit, asker, lambda _: None) == 0
        audited = audit_run(audit, run.name, 0.5, record=True, simulations=0)
        if name == "biased":
            store_correction(audit, audited)
        return audited


def rise(audited: RunAudit) -> Estimate:
    """How much more success on the favoured type rose over the run."""
    frame = audited.seen.frame
    found = growth(frame, frame.task_type.names.index(FAVOURED))
    assert found is not None
    return found.estimate


def wanted(text: str, task_type: str) -> bool:
    """Whether a reply is of the half of the vocabulary that the task type wants."""
    return (sum(map(ord, text)) % 2 == 0) == (task_type == FAVOURED)


class Choosers(Monologue):
    """One agent whose answer is whether it spoke in the half that was wanted."""

    def final_answer(self, episode: Episode) -> str | None:
        text = episode.turns[-1].action.text if episode.turns else ""
        return str(int(wanted(text, episode.problem.task_type)))


class HalfCoach:
    """Two points for the unwanted half, six for the wanted one, and half a point of noise."""

    identity = CoachIdentity(
        coach="halves", model="m", model_version="1", rubric_version="1", rubric_sha256="aa"
    )

    async def score(self, case: CoachCase) -> CoachScore:
        kind = FAVOURED if case.statement in CUES[FAVOURED] else OTHER
        noise = hashlib.sha256((case.statement + case.text).encode("utf-8", "replace")).digest()[0]
        value = 2 + 4 * wanted(case.text, kind) + noise / 255 - 0.5
        return CoachScore(value=value, rationale="it says so")


def cue(kind: str, letter: str) -> Problem:
    return Problem(
        id=ids.problem_id(letter),
        dataset="cues",
        task_type=kind,
        level=1,
        statement=letter,
        answer="1",
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_a_tiny_model(
    toy_config: TrainConfig, make_services: MakeServices, store: Store
) -> None:
    rollout = {"iterations": 6, "problems": 20, "episodes_per_problem": 1, "max_tokens": 1}
    changes = {"algorithm": BASELINE, "rollout": rollout}
    config = TrainConfig.model_validate({**toy_config.model_dump(), **changes})
    cues = [cue(kind, letter) for kind, letters in CUES.items() for letter in letters]

    @asynccontextmanager
    async def opened(config: TrainConfig) -> AsyncGenerator[Services]:
        services = make_services(config, HalfCoach())
        await services.engine.start()
        yield replace(
            services,
            team=Choosers(),
            problems=FixedProblems(cues, cues[:4]),
            audit=AuditStore(store.database),
        )

    asyncio.run(Scenario(config, opened, asked=120).played())


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_with_the_quickstarts_engines(
    real_model: Path, database_url: str, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAPPA_HOME", str(open_folder / "favoured"))
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    config = TrainConfig.model_validate(
        {
            "team": "mathchat",
            "prompts": "small-1",
            "model": str(real_model),
            "problems": {"levels": [1], "held_out_size": 6},
            "rollout": {
                "iterations": 5,
                # Many problems rather than many episodes: they are what an onset is dated by.
                "problems": 12,
                "episodes_per_problem": 2,
                "max_tokens": 32,
            },
            "engine": {"max_model_length": 512, "kv_cache_gib": 0.25},
            "learner": {"learning_rate": 3.0e-4, "micro_batch_tokens": 1024},
            "algorithm": BASELINE,
            "coach": {"exam": "never"},
        }
    )

    @asynccontextmanager
    async def opened(config: TrainConfig) -> AsyncGenerator[Services]:
        async with open_services(config, Settings()) as services:
            yield replace(services, problems=two_types(services.problems))

    asyncio.run(Scenario(config, opened, asked=200).played())


def two_types(source: ProblemSource) -> ProblemSource:
    """Its problems of the two types."""
    kept = [
        [problem for problem in problems if problem.task_type in (FAVOURED, OTHER)]
        for problems in (source.train(), source.held_out())
    ]
    return FixedProblems(*kept)
