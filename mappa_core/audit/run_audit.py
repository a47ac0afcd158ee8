"""Auditing one stored run: read, work out, write down; no Prefect needed."""

from dataclasses import dataclass, replace

from mappa_core.audit import sql
from mappa_core.audit.findings import KINDS, AuditInput, AuditResult, as_finding, audit
from mappa_core.audit.records import Figure, Finding
from mappa_core.audit.statistics.counting import Rate, Unknowable
from mappa_core.audit.statistics.experiment_rates import experiment_rates
from mappa_core.audit.statistics.rates import rates_of
from mappa_core.audit.store import AuditStore
from mappa_core.audit.watch.anchors import anchor_history
from mappa_core.audit.watch.versions import model_changes
from mappa_core.core.errors import NotFound

DEFAULT_SIMULATIONS = 60
"""Simulated runs behind each rate beside a verdict: some 2 s."""
SMALLEST_RATES = 20
"""Actions below which simulating a run of that shape says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAudit:
    """An audit with what it looked at and how often such an audit is wrong."""

    seen: AuditInput
    result: AuditResult
    rates: tuple[Rate | Unknowable, ...]
    """The experiment's first, where there is one."""


def audit_run(
    store: AuditStore, name: str, margin: float, *, record: bool, simulations: int
) -> RunAudit:
    """Audit one run from the views of its store.

    Args:
        store: Where it is.
        name: Name, id or a prefix of either.
        margin: Biases below this many points do not matter.
        record: Whether to write the findings down; a look that is not is not counted either.
        simulations: Simulated runs behind each rate; 0 for none.

    Raises:
        NotFound: No such run, or it has no scored training actions.
    """
    seen = _read(store, name, margin)
    looked, number = _look(store, seen)
    seen = replace(seen, look=number, counted=record)
    result = audit(seen)
    if record:
        store.add([looked])
        own = [finding for finding in result.findings if finding.kind in KINDS]
        store.save_findings(seen.run.id, KINDS, own)
    return RunAudit(seen=seen, result=result, rates=_rates(seen, simulations))


def _read(store: AuditStore, name: str, margin: float) -> AuditInput:
    run = store.run(name)
    frame = store.frame(run.id)
    if not len(frame):
        raise NotFound(f"run {run.name} has no scored training actions yet: nothing to audit")
    rescored = store.anchor_scores(run.id)
    return AuditInput(
        run=run,
        frame=frame,
        ratings=store.ratings(run.id),
        labelled=store.labelled(run.id),
        anchors=anchor_history(store.anchors(run.id), rescored, store.anchor_types(run.id)),
        changes=model_changes(rescored, store.model_versions(run.id)),
        experiment=store.experiment(run.id),
        margin=margin,
        alerts=store.findings(run.id, "alert"),
    )


def _rates(seen: AuditInput, simulations: int) -> tuple[Rate | Unknowable, ...]:
    frame = seen.frame.judged()
    enough = len(frame) >= SMALLEST_RATES and len(frame.task_type.present()) > 1
    if not simulations:
        return ()
    asked = experiment_rates(seen.experiment, simulations, seen.margin, look=seen.look)
    if not enough:
        return asked
    return (*asked, *rates_of(seen.frame, simulations, seen.margin, look=seen.look))


def _look(store: AuditStore, seen: AuditInput) -> tuple[Finding, int]:
    """This look at the run, and which one it is: looking again at the same rows is the same."""
    frame, answers = seen.frame, len(seen.experiment)
    look = as_finding(
        Figure(
            kind="look",
            subject=f"{len(frame)} actions, {answers} answers",
            iteration=int(frame.iteration.max()),
            actions=len(frame),
            sql=sql.LOOKED_AT,
        ),
        seen.run.id,
    )
    before = [each.id for each in store.findings(seen.run.id, "look")]
    number = before.index(look.id) + 1 if look.id in before else len(before) + 1
    return look, number
