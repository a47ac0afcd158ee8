"""The audit as flows: watching a run while it trains, and auditing stored runs by night.

Whatever is found is in the store, in an artifact of the Prefect run, and an event that an
automation can act on: `mappa.audit.drift`, `health`, `divergence` and `unscored` while a run
trains, `mappa.audit.biased` afterwards.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact
from prefect.events import emit_event
from prefect.runtime import flow_run
from pydantic import Field

from mappa_core.app.config import TrainConfig
from mappa_core.app.databases import opened_audit
from mappa_core.app.services import Services
from mappa_core.audit.config import AuditConfig, StopOn
from mappa_core.audit.report.text import markdown
from mappa_core.audit.run_audit import DEFAULT_SIMULATIONS, audit_run
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.audit.watch.alerts import Alert
from mappa_core.audit.watch.monitor import Monitor
from mappa_core.coach import case
from mappa_core.core.errors import CoachError, NotFound
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachCase, LabelVisibility
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted
from mappa_core.rollout.teams.base import duties_of
from mappa_core.store.opening import opened_store
from mappa_core.store.store import Store


class Watch:
    """Watches the coach of one run, iteration by iteration; remembers what it has read."""

    def __init__(self, port: Services, run: Run, config: TrainConfig) -> None:
        self._run, self._config = run, config.audit
        self._monitor = _monitor(port, run, config)

    async def after(self, iteration: int) -> None:
        """Look at what one iteration left; alerts become rows, and new ones events.

        Raises:
            CoachError: There is something that `audit.stop_on` names; the run can be resumed.
        """
        if self._monitor is None:
            return
        seen = await self._monitor.watch(iteration)
        for alert in seen.new:
            _raise_event(self._run.name, alert)
        self._stop_on(seen.alerts)

    def _stop_on(self, alerts: Sequence[Alert]) -> None:
        stopping = next((alert for alert in alerts if stops(alert.stop, self._config)), None)
        if stopping is not None:
            name = self._run.name
            raise CoachError(
                f"{stopping.what} (audit.stop_on): see `mappa audit {name}`, then start a new run "
                f"{self._instead(stopping.stop)} or go on with `mappa train --resume {name} "
                f"{self._going_on(stopping.stop)}`"
            )

    def _instead(self, what: StopOn) -> str:
        """What a new run would have: where it cannot be told what drifted, what tells it."""
        if what in MAY_BE:
            return (
                f"with more than {counted(self._config.anchors, 'anchor')} (audit.anchors), which "
                "tell it where those of every task type hold still,"
            )
        return "with a coach that holds still,"

    def _going_on(self, what: StopOn) -> str:
        named = self._config.stop_on
        if what in named:
            return f"'audit.stop_on=[{','.join(name for name in named if name != what)}]'"
        return "'audit.waive=[cannot-tell]'"


MAY_BE: Mapping[StopOn, Sequence[StopOn]] = {
    "coach or policy": ("coach", "policy"),
    "policy or order": ("policy",),
}
"""What drifted, where that cannot be told, as far as it can be named in `audit.stop_on`."""


def stops(what: StopOn, config: AuditConfig) -> bool:
    """Whether `audit.stop_on` names it, or a thing that it may be where that is not waived."""
    could_be = () if "cannot-tell" in config.waive else MAY_BE.get(what, ())
    return what in config.stop_on or any(each in config.stop_on for each in could_be)


def _monitor(port: Services, run: Run, config: TrainConfig) -> Monitor | None:
    """Make the monitor; None where there are no anchors or nothing can be audited."""
    if port.audit is None or not config.audit.anchors:
        return None
    duties = duties_of(port.team)

    def case_of(episode: Episode, turn: Turn, sample: int) -> CoachCase:
        visibility = config.coach.visibility.get(turn.agent, LabelVisibility.NEVER)
        return case.case_of(episode, turn, visibility, sample=sample, duties=duties)

    return Monitor(
        run_id=run.id,
        config=config.audit,
        coach=port.scoring_coach,
        case_of=case_of,
        store=port.store,
        audit=port.audit,
    )


def _raise_event(run: str, alert: Alert) -> None:
    emit_event(
        f"mappa.audit.{alert.kind}",
        resource=run_resource(run),
        payload={
            "cause": alert.stop,
            "subject": alert.subject,
            "what": alert.what,
            "iteration": alert.iteration,
            "since": alert.since,
            "estimate": alert.estimate,
            "limit": alert.limit,
        },
    )


def _name_of_audit() -> str:
    return f"audit {flow_run.parameters.get('run') or 'the newest run'}"


@flow(name="audit", flow_run_name=_name_of_audit, persist_result=False)
async def audit(
    run: str | None = None,
    margin: Annotated[float, Field(gt=0, allow_inf_nan=False)] = MARGIN_POINTS,
) -> str:
    """Audit a stored run (default: the newest); returns its verdict.

    Raises:
        NotFound: No such run.
    """
    settings = Settings()
    name = run or await asyncio.to_thread(_newest, settings)
    with opened_audit(settings) as store:
        audited = await asyncio.to_thread(
            audit_run, store, name, margin, record=True, simulations=DEFAULT_SIMULATIONS
        )
    await acreate_markdown_artifact(
        key="audit", markdown=markdown(audited.seen, audited.result, audited.rates)
    )
    if audited.result.verdict == "biased":
        payload = {"verdict": audited.result.verdict, "margin": margin}
        emit_event("mappa.audit.biased", resource=run_resource(name), payload=payload)
    return audited.result.verdict


def _newest(settings: Settings) -> str:
    """Find the newest run that has come as far as training; not one that measures another."""
    with opened_store(settings) as store:
        newest = next(
            (run for run in store.runs.list_runs(sys.maxsize) if _has_trained(store, run)), None
        )
    if newest is None:
        raise NotFound("there is no run to audit yet: start one with `mappa train`")
    return newest.name


def _has_trained(store: Store, run: Run) -> bool:
    return any(episode.phase == "train" for episode in store.episodes.list_episodes(run.id))


def run_resource(run_name: str) -> dict[str, str]:
    """Name the resource of events about a run."""
    return {"prefect.resource.id": f"mappa.run.{run_name}", "prefect.resource.name": run_name}
