"""Findings as one HTML page that needs nothing else: plots inside, every number beside its SQL."""

from functools import partial

from mappa_core.audit import sql
from mappa_core.audit.findings import AuditInput, AuditResult
from mappa_core.audit.records import Finding
from mappa_core.audit.report.charts import COLOURS, INK, plots
from mappa_core.audit.report.text import TITLES, interval, look_of, said_of, sensitivity
from mappa_core.audit.statistics.counting import Rates
from mappa_core.pages.render import render


def html(seen: AuditInput, result: AuditResult, rates: Rates, *, recorded: bool) -> str:
    """The whole page.

    Args:
        seen: What was audited.
        result: What came out.
        rates: How often an audit of a run of this shape is wrong, by simulation.
        recorded: Whether the findings are rows in the database that was audited.
    """
    tables = {
        title: [finding for finding in result.findings if finding.kind == kind]
        for kind, title in TITLES.items()
    }
    return render(
        "audit.html",
        title=f"Audit of {seen.run.name}",
        verdict=result.verdict,
        observational=result.observational,
        experiment=bool(result.experiment),
        size=f"{len(seen.frame)} actions on {seen.frame.problem_count} problems",
        size_sql=sql.of_run(sql.SIZE, seen.run.id),
        margin=f"{seen.margin:g}",
        look=look_of(seen),
        drift=() if result.drift is None else result.drift.lines,
        rates=[said_of(rate) for rate in rates],
        plots=plots(seen, result),
        tables={title: findings for title, findings in tables.items() if findings},
        colour=_colour,
        subject=_subject,
        interval=interval,
        detail=_detail,
        query=partial(_query, recorded=recorded),
        hint=_hint,
        recorded=recorded,
    )


def _colour(verdict: str) -> str:
    return COLOURS.get(verdict, INK)


def _subject(finding: Finding) -> str:
    if finding.iteration is not None and finding.kind in ("update_share", "alert"):
        return f"{finding.subject}, iteration {finding.iteration}"
    return finding.subject


def _detail(finding: Finding) -> str:
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in finding.detail.items()
        if finding.kind != "drift" and value is not None
    )


def _query(finding: Finding, *, recorded: bool) -> str:
    gives = "gives the figure" if " AS estimate" in finding.sql else "what it was worked out from"
    stored = f"\n\n-- all of it as stored\n{sql.stored(finding.id)};" if recorded else ""
    return f"-- {gives}\n{finding.sql};{stored}"


def _hint(finding: Finding) -> str:
    """How many more actions would tell, or what would explain the gap away."""
    if unseen := finding.detail.get("seen"):
        return f" ({unseen})"
    if said := sensitivity(finding):
        return said
    more = finding.detail.get("more_actions")
    undecided = finding.verdict == "cannot tell" and finding.kind.startswith(
        ("task_type", "experiment")
    )
    return f" (about {more:,} more actions would)" if more and undecided else ""
