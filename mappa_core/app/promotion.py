"""The case for promoting a run: what `evaluate` compares, with an audit of its coach made now."""

from collections.abc import Collection

from mappa_core.app.databases import Records
from mappa_core.audit.needed import what_would_tell
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.core.records.runs import Run
from mappa_core.evaluate.audit_objections import CoachAudit, Waiver
from mappa_core.evaluate.promotion import Case, build_case


def considered(
    records: Records, run: str, agent: str | None, waive: Collection[Waiver] = ()
) -> Case:
    """Build the case of one run, with an audit made now; raises as `flows.promote`."""
    stored = records.store.runs.get_run(run)
    return build_case(
        stored,
        agent,
        store=records.store,
        registry=records.registry,
        audit=_audit(records, stored),
        waive=waive,
    )


def _audit(records: Records, run: Run) -> CoachAudit | None:
    """An audit made now: stored findings may be of fewer iterations, or of a wider margin."""
    if not records.store.policies.list_checkpoints(run.id):
        return None
    audited = audit_run(records.audit, str(run.id), MARGIN_POINTS, record=True, simulations=0)
    return CoachAudit(
        verdict=audited.result.verdict,
        biased_for=audited.result.biased,
        needed=what_would_tell(audited.seen, audited.result),
    )


def summary(case: Case, override: str | None) -> str:
    """Write the case in Markdown, for people."""
    lines = [f"# Promotion of {case.candidate}", "", f"* against: {case.champion or 'no champion'}"]
    if (compared := case.comparison) is not None:
        lines.append(
            f"* gain on {compared.problems} held-out problems: {100 * compared.difference:+.1f} "
            f"points, 95 % interval {100 * compared.low:+.1f} to {100 * compared.high:+.1f}: "
            f"{compared.verdict}"
        )
    lines.append(f"* audit of the coach: {case.verdict}")
    lines += [f"* objection: {each}" for each in case.objections]
    lines += [f"* waived: {said}" for said in case.waived.values()]
    if override is not None:
        lines.append(f"* overridden: {override}")
    lines += ["", "| model | version |", "| --- | --- |"]
    lines += [f"| {each.name} | {each.version} |" for each in case.moved]
    return "\n".join(lines)
