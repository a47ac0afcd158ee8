"""Asks a person what to do about a coach that the audit of a run under way does not acquit.

every so many iterations: audit ─▶ a verdict of ask_on ─▶ a question that is paused, with a form
    ├─ go on        as before
    ├─ experiment   the coach is asked again about stored actions; if that does not clear it, the
    │               form comes back
    ├─ debias       what an experiment found is taken off from here on
    └─ stop         the run ends, and can be resumed

The question is a flow run of its own, under the training run, which stays running: a paused run
gives its deployment's place away, and Prefect ends it minutes later, when it cannot renew its lease
on that place.

An answer is kept as a finding of the kind `answer`, so that a resumed run does what was said and
does not ask again. Engines and learner stay open meanwhile.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact
from prefect.events import emit_event
from prefect.exceptions import FlowPauseTimeout
from prefect.flow_runs import apause_flow_run
from prefect.input import RunInput
from pydantic import Field

from flows.audit import run_resource
from mappa_core.app.checks import auditable
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services
from mappa_core.audit.corrections import store_correction
from mappa_core.audit.experiments.asking import ask, plan_experiment, with_forecast
from mappa_core.audit.experiments.changes import Asker
from mappa_core.audit.findings import as_finding
from mappa_core.audit.needed import experiment_size, what_would_tell
from mappa_core.audit.records import Figure
from mappa_core.audit.report.text import markdown
from mappa_core.audit.run_audit import DEFAULT_SIMULATIONS, RunAudit, audit_run
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.audit.store import AuditStore
from mappa_core.coach.opening import probe_coaches
from mappa_core.core.errors import CoachError, ConfigError
from mappa_core.core.records.runs import Run
from mappa_core.core.text import counted
from mappa_core.rollout.teams.base import duties_of

GO_ON, EXPERIMENT, DEBIAS, STOP = "go on", "experiment", "debias", "stop"
KIND = "answer"
"""Of the finding that keeps an answer."""
POLL_SECONDS = 2
"""How often the answer is looked for."""


class Answer(RunInput):
    """The form on the page of the paused question."""

    decision: Literal["go on", "experiment", "debias", "stop"] = Field(
        description="go on: as before. experiment: ask the coach again about stored actions with "
        "one thing changed, which alone tells a bias from what is deserved. debias: take off the "
        "scores of the iterations to come what an experiment found. stop: end the run; it can be "
        "resumed."
    )


@flow(name="question", flow_run_name="question after iteration {iteration}", persist_result=False)
async def question(iteration: int, words: str, seconds: int) -> str:
    """Wait for a person's decision about a run; `words` stand above the form.

    Raises:
        FlowPauseTimeout: There was none in so many seconds.
    """
    answer = await apause_flow_run(
        wait_for_input=Answer.with_initial_data(description=words),
        timeout=seconds,
        poll_interval=POLL_SECONDS,
        # A key that a retried run has used before would count as answered.
        key=f"audit-{iteration}-{uuid4().hex}",
    )
    return answer.decision


async def asked(port: Services, run: Run, iteration: int, config: TrainConfig) -> TrainConfig:
    """Audit the run so far where it is time to, and ask a person about a verdict in `audit.ask_on`.

    Returns `config` as the next iteration is to have it. A run that takes a bias off already is not
    asked about.

    Raises:
        CoachError: The answer is to stop, or there was none in time; the run can be resumed.
        ConfigError: Nothing can be audited.
    """
    every, last = config.audit.ask_every, iteration == config.rollout.iterations
    if not every or iteration % every or last or config.audit.correction:
        return config
    audit = auditable(port.audit)
    answers = await asyncio.to_thread(audit.findings, run.id, KIND)
    found = next((each for each in answers if each.iteration == iteration), None)
    question = Question(port=port, run=run, iteration=iteration, config=config, audit=audit)
    answer = found or await question.put()
    if answer is None or answer.verdict == GO_ON:
        return config
    corrected = config.audit.model_copy(update={"correction": str(answer.detail["correction"])})
    return config.model_copy(update={"audit": corrected})


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a person after one iteration of a run."""

    port: Services
    run: Run
    iteration: int
    config: TrainConfig
    audit: AuditStore

    async def put(self) -> Figure | None:
        """Audit the run and ask; returns the answer, written down, or None for nothing to ask.

        Raises:
            CoachError: The answer is to stop, or there was none in time.
        """
        audited = await self._audited(simulations=DEFAULT_SIMULATIONS)
        # A resumed run walks through iterations that it left behind; those are not asked about.
        latest = int(audited.seen.frame.iteration.max())
        moved_on = latest > self.iteration + self.config.rollout.async_level
        if moved_on or audited.result.verdict not in self.config.audit.ask_on:
            return None
        answer = await self._decided(audited)
        await asyncio.to_thread(self.audit.add, [as_finding(answer, self.run.id)])
        return answer

    async def _decided(self, audited: RunAudit) -> Figure:
        """Ask until there is an answer that can be followed, or nothing to ask about any more."""
        before, name = "", self.run.name
        while (verdict := audited.result.verdict) in self.config.audit.ask_on:
            await self._tell(audited)
            decision = await self._answered(audited, before)
            if decision == STOP:
                raise CoachError(
                    f"stopped by a person after iteration {self.iteration}: the audit says "
                    f"{verdict}, see `mappa audit {name}`; `mappa train --resume {name}` asks again"
                )
            if decision == GO_ON:
                break
            try:
                if decision == DEBIAS:
                    return await self._debiased()
                before = await self._experimented(audited)
            except ConfigError as error:
                before = f"Not done: {error}."
            audited = await self._audited(simulations=0)
        return self._figure(GO_ON, verdict, {})

    async def _audited(self, *, simulations: int) -> RunAudit:
        return await asyncio.to_thread(
            audit_run,
            self.audit,
            self.run.name,
            MARGIN_POINTS,
            record=True,
            simulations=simulations,
        )

    async def _debiased(self) -> Figure:
        """Of a new audit: a person may have made the experiment while the run was paused."""
        audited = await self._audited(simulations=0)
        correction = await asyncio.to_thread(store_correction, self.audit, audited)
        return self._figure(DEBIAS, audited.result.verdict, {"correction": str(correction.id)})

    def _figure(self, decision: str, verdict: str, detail: dict[str, str]) -> Figure:
        return Figure(
            kind=KIND, subject=verdict, verdict=decision, iteration=self.iteration, detail=detail
        )

    async def _experimented(self, audited: RunAudit) -> str:
        """Ask the run's coach again about stored actions; returns what was done, in words."""
        asker = Asker(
            coaches=probe_coaches(self.port.scoring_coach),
            task_types=await asyncio.to_thread(self.audit.task_types, self.run.id),
            visibility=self.config.coach.visibility,
            duties=duties_of(self.port.team),
        )
        store, audit, run_id = self.port.store, self.audit, self.run.id
        size, _ = experiment_size(audited.seen)
        job = await asyncio.to_thread(plan_experiment, store, audit, run_id, asker, size)
        job = with_forecast(job, asker, self.config.coach)
        self.port.progress.on_notice(
            f"the coach is asked {counted(job.calls, 'question')} about "
            f"{counted(job.actions, 'stored action')}, "
            f"{job.expected.cost_usd:,.2f} dollars by the configured prices"
        )
        unscored = await ask(job, audit, asker, lambda _: None)
        return (
            f"The coach was asked {counted(job.calls, 'question')} about "
            f"{counted(job.actions, 'stored action')}; {unscored} had no score."
        )

    async def _tell(self, audited: RunAudit) -> None:
        """Let people and automations know that there is something to answer."""
        verdict = audited.result.verdict
        await acreate_markdown_artifact(
            key="audit", markdown=markdown(audited.seen, audited.result, audited.rates)
        )
        payload = {"verdict": verdict, "iteration": self.iteration, "asks": True}
        resource = run_resource(self.run.name)
        event = f"mappa.audit.{verdict.replace(' ', '_')}"
        emit_event(event, resource=resource, payload=payload)
        self.port.progress.on_waiting(
            f"the audit of iteration {self.iteration} says {verdict}; the run waits until the page "
            f"of `question after iteration {self.iteration}` in Prefect (Resume) says go on, "
            "experiment, debias or stop"
        )

    async def _answered(self, audited: RunAudit, before: str) -> str:
        """Wait for a person's decision; `before` says what became of the last one."""
        words = _words(self.iteration, audited, before)
        hours, name = self.config.audit.ask_hours, self.run.name
        try:
            return await question(self.iteration, words, max(1, round(hours * 3600)))
        except FlowPauseTimeout:
            raise CoachError(
                f"the audit says {audited.result.verdict}, and there was no answer in {hours:g} "
                f"hours (audit.ask_hours): see `mappa audit {name}`; `mappa train --resume {name}` "
                "asks again"
            ) from None


def _words(iteration: int, audited: RunAudit, before: str) -> str:
    """What the form says above its choices."""
    result, name = audited.result, audited.seen.run.name
    says = f"After iteration {iteration} the audit of {name} says of its coach: {result.verdict}."
    figures = f"The artifact `audit` and `mappa audit {name}` have the figures."
    return "\n\n".join(part for part in (before, f"{says} {_basis(audited)}", figures) if part)


def _basis(audited: RunAudit) -> str:
    """What the verdict rests on, and what would tell."""
    result = audited.result
    if result.verdict == "biased" and result.experiment:
        return f"An experiment finds it: {', '.join(result.biased)}."
    told = "" if result.verdict == "biased" else what_would_tell(audited.seen, result)
    more = f" To tell would take {told}." if told else ""
    if not result.alarming or result.experiment:
        return more.strip()
    return (
        f"It rests on a regression: {', '.join(result.alarming)}. What it finds may be deserved; "
        f"only an experiment can tell.{more}"
    )
