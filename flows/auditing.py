"""The audit as flows: watching a run while it trains, and auditing stored runs by night.

Whatever is found is in the store, in an artifact of the Prefect run, and an event
(`mappa.audit.drift`, `mappa.audit.biased`) that an automation can act on.
"""

import asyncio
from collections.abc import Sequence

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact
from prefect.events import emit_event

from flows.audit_run import DEFAULT_SIMULATIONS, audit_stored
from mappa_core import audit_steps
from mappa_core.auditing.report import markdown
from mappa_core.auditing.verdicts import MARGIN_POINTS
from mappa_core.bootstrap import Services, opened_audit, opened_store, services
from mappa_core.config import AuditConfig
from mappa_core.domain.errors import CoachError, ConfigError, NotFound
from mappa_core.domain.records import Run, ScoredAction
from mappa_core.settings import Settings
from mappa_core.steps import Correct, UpdateRequest


async def watch(run: Run, iteration: int, config: AuditConfig) -> None:
    """Watch the coach after one iteration.

    Raises:
        CoachError: Something drifted that `audit.stop_on` names; the run can be resumed.
    """
    port = services()
    if port.audit is None or not config.anchors:
        return
    seen = await audit_steps.watch_iteration(
        run.id, iteration, config, coach=port.coach, store=port.store, audit=port.audit
    )
    if seen.cause == "none":
        return
    payload = {"cause": seen.cause, "since": seen.since, "iteration": iteration}
    emit_event("mappa.audit.drift", resource=run_resource(run.name), payload=payload)
    if seen.cause in config.stop_on:
        raise CoachError(
            f"the {seen.cause} has drifted since iteration {seen.since} (audit.stop_on): see "
            f"`mappa audit {run.name}`, then start a new run with a coach that holds still"
        )


def corrector(config: AuditConfig, port: Services) -> Correct | None:
    """What takes a proven bias off the scores of an update; None where none is asked for.

    Raises:
        ConfigError: Nothing can be audited, or the correction is another coach's.
        NotFound: There is no such correction.
    """
    if not config.correction:
        return None
    if port.audit is None:
        raise ConfigError("audit.correction needs a store that can be audited")
    audit = port.audit
    correction = audit.correction(config.correction)
    identity = port.coach.identity
    if (correction.coach, correction.rubric_sha256) != (identity.coach, identity.rubric_sha256):
        raise ConfigError(
            f"the correction {config.correction} is for the coach {correction.coach} and another "
            "rubric than this run's: estimate one on a run of this coach"
        )

    def correct(request: UpdateRequest, actions: Sequence[ScoredAction]) -> Sequence[ScoredAction]:
        return audit_steps.corrected_actions(
            correction,
            request.run_id,
            request.iteration,
            actions,
            store=port.store,
            audit=audit,
        )

    return correct


@flow(name="audit", flow_run_name="audit {run}", persist_result=False)
async def audit(run: str | None = None, margin: float = MARGIN_POINTS) -> str:
    """Audit a stored run (default: the newest); returns its verdict.

    Raises:
        NotFound: No such run.
    """
    settings = Settings()
    name = run or await asyncio.to_thread(_newest, settings)
    with opened_audit(settings) as store:
        audited = await asyncio.to_thread(
            audit_stored, store, name, margin, record=True, simulations=DEFAULT_SIMULATIONS
        )
    await acreate_markdown_artifact(
        key="audit", markdown=markdown(audited.material, audited.result, audited.rates)
    )
    if audited.result.verdict == "biased":
        payload = {"verdict": audited.result.verdict, "margin": margin}
        emit_event("mappa.audit.biased", resource=run_resource(name), payload=payload)
    return audited.result.verdict


def _newest(settings: Settings) -> str:
    with opened_store(settings) as store:
        runs = store.runs(1)
    if not runs:
        raise NotFound("there is no run to audit yet: start one with `mappa train`")
    return runs[0].name


def run_resource(run_name: str) -> dict[str, str]:
    """What events about a run are about."""
    return {"prefect.resource.id": f"mappa.run.{run_name}", "prefect.resource.name": run_name}
