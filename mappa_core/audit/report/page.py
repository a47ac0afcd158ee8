"""Findings as one HTML page that needs nothing else: plots inside, every number beside its SQL."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mappa_core.audit import sql
from mappa_core.audit.findings import AuditInput, AuditResult
from mappa_core.audit.records import Finding
from mappa_core.audit.report.charts import COLOURS, INK, plots
from mappa_core.audit.report.text import TITLES, interval
from mappa_core.audit.statistics.selftest import Rate
from mappa_core.pages.render import render


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verdict in its colour."""

    text: str
    colour: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A finding as the page prints it."""

    subject: str
    against: str
    stratum: str
    interval: str
    detail: str
    sql: str
    unit: str
    p_value: str
    actions: int
    problems: int | str
    verdict: Verdict


def html(seen: AuditInput, result: AuditResult, rates: Sequence[Rate], *, recorded: bool) -> str:
    """The whole page.

    Args:
        seen: What was audited.
        result: What came out.
        rates: How often an audit of a run of this shape is wrong, by simulation.
        recorded: Whether the findings are rows in the database that was audited.
    """
    return render(
        "audit.html",
        title=f"Audit of {seen.run.name}",
        verdict=Verdict(text=result.verdict, colour=COLOURS[result.verdict]),
        size=f"{len(seen.frame)} actions on {seen.frame.problem_count} problems",
        size_sql=sql.of_run(sql.SIZE, seen.run.id),
        margin=f"{seen.margin:g}",
        rates=rates,
        plots=list(plots(seen, result)),
        tables=list(_tables(result.findings, recorded=recorded)),
        recorded=recorded,
    )


def _tables(findings: Sequence[Finding], *, recorded: bool) -> Iterator[tuple[str, list[Row]]]:
    for kind, title in TITLES.items():
        rows = [_row(each, recorded=recorded) for each in findings if each.kind == kind]
        if rows:
            yield title, rows


def _row(finding: Finding, *, recorded: bool) -> Row:
    subject = finding.subject
    if finding.iteration is not None and finding.kind in ("update_share", "alert"):
        subject = f"{subject}, iteration {finding.iteration}"
    return Row(
        subject=subject,
        against=finding.against,
        stratum=finding.stratum,
        interval=interval(finding),
        detail=_detail(finding),
        sql=_query(finding, recorded=recorded),
        unit=finding.unit,
        p_value="" if finding.p_value is None else f"{finding.p_value:.3g}",
        actions=finding.actions,
        problems=finding.problems or "",
        verdict=Verdict(
            text=f"{finding.verdict}{_hint(finding)}", colour=COLOURS.get(finding.verdict, INK)
        ),
    )


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
    """How many more actions would tell."""
    more = finding.detail.get("more_actions")
    undecided = finding.verdict == "cannot tell" and finding.kind == "task_type"
    return f" (about {more:,} more actions would)" if more and undecided else ""
