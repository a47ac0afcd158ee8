"""The promotion flow: candidate against champion, the audit's verdict, and then the alias."""

import asyncio

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact

from mappa_core.app.databases import Records, opened_records
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import Settings
from mappa_core.evaluate import promotion as promoting
from mappa_core.evaluate.promotion import Case, CoachAudit


@flow(name="promote", flow_run_name="promote {run}", persist_result=False)
async def promote(run: str, agent: str | None = None, override: str | None = None) -> Case:
    """Make a stored run's last checkpoints champions where the evidence supports it.

    Its coach is audited first.

    Args:
        run: Name, id or a prefix of either.
        agent: Only this agent's checkpoint; None for the whole team.
        override: Why to promote in spite of objections; recorded with the model versions.

    Raises:
        PromotionRefused: The gain is not certified, or the coach is biased.
        NotFound: No such run, or it has nothing registered.
        ConfigError: An empty reason, or the candidates are champions already.
    """
    if override is not None and not override.strip():
        raise ConfigError("an override needs a reason: --override 'why'")
    with opened_records(Settings()) as records:
        case = await asyncio.to_thread(considered, records, run, agent)
        await acreate_markdown_artifact(key="promotion", markdown=summary(case, override))
        await asyncio.to_thread(promoting.promote, case, records.registry, override=override)
    return case


def considered(records: Records, run: str, agent: str | None) -> Case:
    """Build the case of one run, with an audit made now; raises as `promote`."""
    stored = records.store.runs.get_run(run)
    return promoting.build_case(
        stored,
        agent,
        store=records.store,
        registry=records.registry,
        audit=_audit(records, stored),
    )


def _audit(records: Records, run: Run) -> CoachAudit | None:
    """An audit made now: stored findings may be of fewer iterations, or of a wider margin."""
    if not records.store.policies.list_checkpoints(run.id):
        return None
    audited = audit_run(records.audit, str(run.id), MARGIN_POINTS, record=True, simulations=0)
    return CoachAudit(verdict=audited.result.verdict, biased_for=audited.result.biased)


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
    if override is not None:
        lines.append(f"* overridden: {override}")
    lines += ["", "| model | version |", "| --- | --- |"]
    lines += [f"| {each.name} | {each.version} |" for each in case.moved]
    return "\n".join(lines)
