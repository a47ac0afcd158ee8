"""Asks a person what to do about a coach that the audit of a run under way does not acquit.

every so many iterations: audit ─▶ biased ─▶ the run is paused, with a form on its page
                                               ├─ go on    as before
                                               ├─ debias   the bias is taken off from here on
                                               └─ stop     the run ends, and can be resumed

An answer is kept as a finding of the kind `answer`, so that a resumed run does what was said and
does not ask again. Engines and learner stay open meanwhile.
"""

import asyncio
from typing import Literal
from uuid import uuid4

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
from mappa_core.audit.findings import as_finding
from mappa_core.audit.needed import what_would_tell
from mappa_core.audit.records import Figure
from mappa_core.audit.report.text import markdown
from mappa_core.audit.run_audit import DEFAULT_SIMULATIONS, RunAudit, audit_run
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import CoachError
from mappa_core.core.records.runs import Run

GO_ON, DEBIAS, STOP = "go on", "debias", "stop"
KIND = "answer"
"""Of the finding that keeps an answer."""
POLL_SECONDS = 2
"""How often the answer is looked for."""


class Answer(RunInput):
    """The form on the page of the paused run."""

    decision: Literal["go on", "debias", "stop"] = Field(
        description="go on: as before. debias: take the bias off the scores of the iterations to "
        "come. stop: end the run; it can be resumed."
    )


async def asked(port: Services, run: Run, iteration: int, config: TrainConfig) -> TrainConfig:
    """Audit the run so far where it is time to, and ask a person about a verdict in `audit.ask_on`.

    Returns `config` as the next iteration is to have it. A run that takes a bias off already is not
    asked about.

    Raises:
        CoachError: The answer is to stop, or there was none in time; the run can be resumed.
        ConfigError: There is nothing to audit.
    """
    every, last = config.audit.ask_every, iteration == config.rollout.iterations
    if not every or iteration % every or last or config.audit.correction:
        return config
    audit = auditable(port.audit)
    answers = await asyncio.to_thread(audit.findings, run.id, KIND)
    found = next((each for each in answers if each.iteration == iteration), None)
    answer = found or await _ask(port, run, iteration, config, audit)
    if answer is None or answer.verdict == GO_ON:
        return config
    corrected = config.audit.model_copy(update={"correction": str(answer.detail["correction"])})
    return config.model_copy(update={"audit": corrected})


async def _ask(
    port: Services, run: Run, iteration: int, config: TrainConfig, audit: AuditStore
) -> Figure | None:
    """The answer, written down; None where there is nothing to ask about."""
    audited = await asyncio.to_thread(
        audit_run, audit, run.name, MARGIN_POINTS, record=True, simulations=DEFAULT_SIMULATIONS
    )
    # A resumed run walks through iterations that it left behind; those are not asked about.
    latest = int(audited.seen.frame.iteration.max())
    moved_on = latest > iteration + config.rollout.async_level
    if moved_on or audited.result.verdict not in config.audit.ask_on:
        return None
    await _tell(port, run, iteration, audited)
    decision = await _answered(run, iteration, config, audited)
    if decision == STOP:
        raise CoachError(
            f"stopped by a person after iteration {iteration}: the audit says "
            f"{audited.result.verdict}, see `mappa audit {run.name}`; `mappa train --resume "
            f"{run.name}` asks again"
        )
    detail: dict[str, str] = {}
    if decision == DEBIAS:
        correction = await asyncio.to_thread(store_correction, audit, audited)
        detail["correction"] = str(correction.id)
    answer = Figure(
        kind=KIND,
        subject=audited.result.verdict,
        verdict=decision,
        iteration=iteration,
        detail=detail,
    )
    await asyncio.to_thread(audit.add, [as_finding(answer, run.id)])
    return answer


async def _tell(port: Services, run: Run, iteration: int, audited: RunAudit) -> None:
    """Let people and automations know that there is something to answer."""
    await acreate_markdown_artifact(
        key="audit", markdown=markdown(audited.seen, audited.result, audited.rates)
    )
    payload = {"verdict": audited.result.verdict, "iteration": iteration, "asks": True}
    event = f"mappa.audit.{audited.result.verdict.replace(' ', '_')}"
    emit_event(event, resource=run_resource(run.name), payload=payload)
    port.progress.on_waiting(
        f"the audit of iteration {iteration} says {audited.result.verdict}; the run is paused "
        "until its page in Prefect (Resume) says go on, debias or stop"
    )


async def _answered(run: Run, iteration: int, config: TrainConfig, audited: RunAudit) -> str:
    """Wait for a person's decision."""
    result = audited.result
    found = f"that its coach is biased: {', '.join(result.biased)}"
    if result.verdict != "biased":
        found = f"{result.verdict}: to tell would take {what_would_tell(audited.seen, result)}"
    form = Answer.with_initial_data(
        description=f"After iteration {iteration} the audit of {run.name} says {found}. The "
        "artifact `audit` has the figures."
    )
    hours = config.audit.ask_hours
    try:
        answer = await apause_flow_run(
            wait_for_input=form,
            timeout=max(1, round(hours * 3600)),
            poll_interval=POLL_SECONDS,
            # A key that a retried run has used before would count as answered.
            key=f"audit-{iteration}-{uuid4().hex}",
        )
    except FlowPauseTimeout:
        raise CoachError(
            f"the audit says {audited.result.verdict}, and there was no answer in {hours:g} hours "
            f"(audit.ask_hours): see `mappa audit {run.name}`; `mappa train --resume {run.name}` "
            "asks again"
        ) from None
    return answer.decision
