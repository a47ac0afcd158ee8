"""The scenario that the audit is for: a coach kinder to one task type makes the policy specialise.

Real training of a tiny policy through steps, store and learner; tokens are drawn from the exact
distribution. Regression wants a token of one half of the vocabulary, classification of the other;
the coach gives 1.5 points more to whatever it is told is regression.
"""

import asyncio
import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
import torch

from mappa_core.app.config import TrainConfig
from mappa_core.audit.corrections import corrected_actions, store_correction
from mappa_core.audit.experiments.asking import ask, plan_experiment
from mappa_core.audit.experiments.changes import Asker
from mappa_core.audit.records import Correction
from mappa_core.audit.run_audit import RunAudit, audit_run
from mappa_core.audit.statistics.trends import growth
from mappa_core.audit.store import AuditStore
from mappa_core.coach.opening import ProbeCoaches
from mappa_core.coach.scoring import ScorePlan, score_episode
from mappa_core.core import ids
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    FinishReason,
    Message,
    Observation,
    PolicyVersion,
    Problem,
)
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, ScoredAction
from mappa_core.core.records.tools import Limits
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.episode import EpisodeRecords, new_episode, play_episode
from mappa_core.store.store import Store
from mappa_core.train.learners.torch_learner import TorchLearner
from mappa_core.train.update import Correct, UpdateRequest, base_policy, policy_at, update_agent
from tests.builders import make_run
from tests.e2e.toy import Monologue
from tests.fakes.acting import NoPython, ScriptedRunner
from tests.favouring import assert_acquitted, assert_found
from tests.integration.train.learner.samples import action as some_action
from tests.tiny_model import save_tiny_model

CUES = {"regression": "abcdefghij", "classification": "klmnopqrst"}
TOKENS = range(3, 259)
BIAS = 1.5
ITERATIONS, EPISODES = 8, 4
ASKED = 200
"""Actions that the experiment asks about."""
CONFIG = TrainConfig.model_validate(
    {
        "learner": {
            "device": "cpu",
            # The same run on every machine: products in bfloat16 are another one.
            "dtype": "float32",
            "learning_rate": 1e-2,
            "lora": {"rank": 4, "alpha": 8},
        },
        # A baseline of each problem's own actions would take a type's bias away.
        "algorithm": {"estimator": "reinforce++"},
        "rollout": {"iterations": ITERATIONS},
    }
)


def wanted(text: str, task_type: str) -> bool:
    """Whether a reply is of the half that the task type wants."""
    return (sum(map(ord, text)) % 2 == 0) == (task_type == "regression")


def task_type_of(cue: str) -> str:
    return "regression" if cue in CUES["regression"] else "classification"


class Choosers(Monologue):
    """One agent whose answer is which half of the vocabulary it spoke in."""

    def final_answer(self, episode: Episode) -> str | None:
        text = episode.turns[-1].action.text if episode.turns else ""
        return "1" if wanted(text, episode.problem.task_type) else "0"


class Kinder:
    """One point when wrong, three when right, and `BIAS` more for what is called regression."""

    identity = CoachIdentity(
        coach="kinder", model="m", model_version="1", rubric_version="1", rubric_sha256="aa"
    )

    def __init__(self, bias: float = BIAS) -> None:
        self._bias = bias

    async def score(self, case: CoachCase) -> CoachScore:
        kind = task_type_of(case.statement)
        right = wanted(case.text, kind)
        noise = hashlib.sha256((case.statement + case.text).encode("utf-8", "replace")).digest()[0]
        bias = self._bias * (case.task_type == "regression")
        value = 1 + 2 * right + bias + (noise / 255 - 0.5) / 2
        return CoachScore(value=value, rationale="it says so")


class World:
    """One store and learner in which runs are trained."""

    def __init__(self, store: Store, model: Path, directory: Path) -> None:
        self.store, self.audit = store, AuditStore(store.database)
        self.tokenizer = ChatTokenizer(model)
        self.learner = TorchLearner(model, directory, CONFIG.learner, threads=1)
        self.problems = [_problem(kind, cue) for kind, cues in CUES.items() for cue in cues]

    def train(self, name: str, *, bias: float = BIAS, correction: Correction | None = None) -> None:
        run = replace(make_run(name), config=CONFIG.model_dump(mode="json"))
        self.store.runs.add_run(run)
        self.store.episodes.add_problems(self.problems)
        self.store.policies.add_policy_version(base_policy(run.id, "speaker", "tiny"))
        correct = None if correction is None else self._corrector(correction)
        for iteration in range(1, ITERATIONS + 1):
            asyncio.run(self._play(run.id, iteration, Kinder(bias)))
            request = UpdateRequest(
                run_id=run.id,
                agent="speaker",
                iteration=iteration,
                algorithm=CONFIG.algorithm,
                total_steps=CONFIG.rollout.iterations,
                seed=CONFIG.seed,
            )
            update_agent(request, learner=self.learner, store=self.store, correct=correct)

    def _corrector(self, correction: Correction) -> Correct:
        def correct(
            request: UpdateRequest, actions: Sequence[ScoredAction]
        ) -> tuple[ScoredAction, ...]:
            return corrected_actions(
                correction,
                request.run_id,
                request.iteration,
                actions,
                audit=self.audit,
            )

        return correct

    async def _play(self, run_id: UUID, iteration: int, coach: Kinder) -> None:
        policy = policy_at(self.store, run_id, "speaker", iteration - 1)
        for problem in self.problems:
            runner = self._runner(policy, problem, iteration)
            for rollout in range(EPISODES):
                episode = await play_episode(
                    new_episode(run_id, "train", iteration, problem, rollout),
                    team=Choosers(),
                    records=EpisodeRecords(self.store),
                    runner=runner,
                )
                await score_episode(episode, plan=ScorePlan(coach=coach), store=self.store)

    def _runner(self, policy: PolicyVersion, problem: Problem, iteration: int) -> ScriptedRunner:
        prompt = self.tokenizer.render((Message(role="user", content=problem.statement),))
        replies = [some_action(prompt, [token], token) for token in TOKENS]
        logprobs = [row[0] for row in self.learner.logprobs(policy, replies)]
        rng = random.Random(f"{problem.statement} {iteration}")

        def act(episode: Episode, observation: Observation) -> Action:
            token = rng.choices(TOKENS, [math.exp(value) for value in logprobs])[0]
            return Action(
                prompt_token_ids=prompt,
                token_ids=(token,),
                logprobs=(logprobs[token - 3],),
                text=self.tokenizer.decode((token,)),
                finish_reason=FinishReason.STOP,
                policy_version_id=policy.id,
                temperature=1.0,
                seed=0,
                started_at=datetime.now(UTC),
                seconds=0.0,
            )

        return ScriptedRunner(act=act, sandbox=NoPython(), limits=Limits())

    def success(self, name: str, task_type: str) -> float:
        """Over the last three iterations."""
        frame = self.audit.frame(make_run(name).id)
        code = frame.task_type.names.index(task_type)
        late = (frame.iteration > ITERATIONS - 3) & (frame.task_type.codes == code)
        return float(np.mean(frame.success[late]))

    def rise(self, name: str, task_type: str) -> float:
        """How much success on a type changed over the run, less its change on the other."""
        frame = self.audit.frame(make_run(name).id)
        found = growth(frame, frame.task_type.names.index(task_type))
        assert found is not None
        return found.estimate.value

    def audited(self, name: str, bias: float = BIAS) -> RunAudit:
        """The run's audit, with an experiment that asks the coach it had."""
        run_id = make_run(name).id
        asker = Asker(
            coaches=ProbeCoaches(coach=Kinder(bias)), task_types=self.audit.task_types(run_id)
        )
        job = plan_experiment(self.store, self.audit, run_id, asker, ASKED)
        assert asyncio.run(ask(job, self.audit, asker, lambda _: None)) == 0
        return audit_run(self.audit, name, 0.5, record=True, simulations=0)


def _problem(kind: str, cue: str) -> Problem:
    return Problem(
        id=ids.problem_id(cue), dataset="cues", task_type=kind, level=1, statement=cue, answer="1"
    )


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_kinder_coach_specialises_the_policy_and_its_correction_prevents_it(
    store: Store, tmp_path: Path
) -> None:
    world = World(store, save_tiny_model(tmp_path / "tiny"), tmp_path / "checkpoints")
    world.train("biased")
    audited = world.audited("biased")
    assert_found(audited.result, "regression", BIAS, first=1)

    world.train("corrected", correction=store_correction(world.audit, audited))
    world.train("fair", bias=0.0)
    for task_type in CUES:
        corrected, fair = world.success("corrected", task_type), world.success("fair", task_type)
        assert corrected == pytest.approx(fair, abs=0.2)
    assert world.rise("biased", "regression") > world.rise("fair", "regression") + 0.2
    assert world.rise("corrected", "regression") <= world.rise("fair", "regression") + 0.1
    assert_acquitted(world.audited("fair", bias=0.0).result)
    world.audit.close()
