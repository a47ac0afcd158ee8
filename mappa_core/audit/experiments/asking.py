"""Asking the coach of a run about its stored actions again, with one thing changed in each.

random sample of actions ─▶ questions ─▶ those without an answer ─▶ forecast ─▶ coach ─▶ rows
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from mappa_core.audit.experiments.changes import Asker, Question
from mappa_core.audit.records import Candidate, ExperimentScore
from mappa_core.audit.store import AuditStore
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.forecast import Forecast, forecast
from mappa_core.coach.scoring import LASTING
from mappa_core.core.concurrency import in_thread, together
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore
from mappa_core.store.store import Store

ACTIONS_AT_ONCE = 64
"""Asked about at a time; an action's answers are stored together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentJob:
    """Lists the questions that have no answer yet, and what asking them is expected to take."""

    questions: tuple[tuple[UUID, tuple[Question, ...]], ...]
    """By action."""
    actions: int
    """Of the whole sample."""
    unseen: tuple[str, ...]
    """Changes that reach the coach in no action."""
    expected: Forecast

    @property
    def calls(self) -> int:
        """Questions that go to the coach."""
        return sum(not each.unseen for _, asked in self.questions for each in asked)


def plan_experiment(
    store: Store, audit: AuditStore, run_id: UUID, asker: Asker, count: int
) -> ExperimentJob:
    """Draw the sample and find out what is still to be asked.

    Args:
        store: Where the episodes are.
        audit: Where answers are.
        run_id: The run.
        asker: Of its coach.
        count: Actions, at most; the same ones every time, so that a larger sample adds to it.

    Raises:
        ConfigError: Another coach or rubric than this one trained the run.
        NotFound: The run has no scored training actions.
    """
    identity = asker.coaches.coach.identity
    _check_same(audit.trainer(run_id), identity, run_id)
    sample = audit.at_random(run_id, count)
    answered = {
        (row.action_id, row.change, row.put)
        for row in audit.experiment_scores(run_id)
        if _is_by(row, identity) and _stays(row)
    }
    asked = [(each.action_id, _asked(store, asker, each)) for each in sample]
    wanted = (
        (action, tuple(q for q in questions if (action, q.change, q.put) not in answered))
        for action, questions in asked
    )
    seen = {q.change for _, questions in asked for q in questions if not q.unseen}
    made = dict.fromkeys(q.change for _, questions in asked for q in questions)
    return ExperimentJob(
        questions=tuple((action, questions) for action, questions in wanted if questions),
        actions=len(sample),
        unseen=tuple(change for change in made if change not in seen),
        expected=Forecast(),
    )


def with_forecast(job: ExperimentJob, asker: Asker, config: CoachModelConfig) -> ExperimentJob:
    """The job with what its calls are expected to take; nothing for a coach without a rubric."""
    rubrics = asker.coaches.rubrics
    if rubrics is None:
        return job
    return replace(job, expected=forecast(_sent(job, asker), rubrics, config))


async def ask(
    job: ExperimentJob, audit: AuditStore, asker: Asker, progress: Callable[[int], None]
) -> int:
    """Ask what is wanted and store the answers, action by action; can be stopped and gone on with.

    Returns how many questions were left without a score. `progress` is told of each action how
    many questions are done.

    Raises:
        CoachError: The coach cannot work at all.
    """
    places = asyncio.Semaphore(ACTIONS_AT_ONCE)
    identity = asker.coaches.coach.identity

    async def one(action: UUID, questions: Sequence[Question]) -> int:
        async with places:
            answers = await together(_answer(action, each, identity) for each in questions)
        await in_thread(audit.add_experiment, answers)
        progress(len(questions))
        return sum(answer.unscored_reason is not None for answer in answers)

    return sum(await together(one(*each) for each in job.questions))


async def _answer(action: UUID, question: Question, identity: CoachIdentity) -> ExperimentScore:
    row = ExperimentScore(
        action_id=action,
        change=question.change,
        put=question.put,
        coach=identity.coach,
        model=identity.model,
        model_version=identity.model_version,
        rubric_sha256=identity.rubric_sha256,
        unseen=question.unseen,
    )
    if question.unseen:
        return row
    score = await question.coach.score(question.case)
    row = replace(row, model_version=score.model_version or identity.model_version)
    if isinstance(score, CoachScore):
        return replace(row, score=score.value)
    return replace(row, unscored_reason=score.reason)


def _asked(store: Store, asker: Asker, candidate: Candidate) -> tuple[Question, ...]:
    episode = store.episodes.get_episode(str(candidate.episode_id))
    return asker.questions(episode, episode.turns[candidate.turn_index])


def _sent(job: ExperimentJob, asker: Asker) -> Iterator[CoachCase]:
    """The cases that go to the coach, each under the name that its rubric is known by."""
    owners = {new: old for old, new in asker.coaches.names.items()}
    for _, questions in job.questions:
        for each in (question for question in questions if not question.unseen):
            named = each.change == "agent name"
            yield replace(each.case, agent=owners[each.case.agent]) if named else each.case


def _check_same(trainer: tuple[str, str], identity: CoachIdentity, run_id: UUID) -> None:
    if trainer != (identity.coach, identity.rubric_sha256):
        raise ConfigError(
            f"run {run_id} was scored by coach {trainer[0]} with rubric {trainer[1][:12]}, and its "
            f"configuration now gives {identity.coach} with {identity.rubric_sha256[:12]}: put "
            "rubric and options of that coach back, for an experiment on another one says nothing "
            "about this run"
        )


def _is_by(row: ExperimentScore, identity: CoachIdentity) -> bool:
    theirs = (identity.coach, identity.model, identity.rubric_sha256)
    return (row.coach, row.model, row.rubric_sha256) == theirs


def _stays(row: ExperimentScore) -> bool:
    """Whether there is an answer, or an absence that will be the same at every later try."""
    return row.unscored_reason is None or row.unscored_reason in LASTING
