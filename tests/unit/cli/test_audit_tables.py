"""An audit's tables on a terminal: what is to be read, and not every part of it."""

from mappa_cli.printing.audits import finding_tables
from mappa_core.audit.records import Finding
from mappa_core.core import ids

RUN = ids.content_id("run", "audited")


def finding(subject: str, verdict: str) -> Finding:
    return Finding(
        id=ids.content_id("finding", subject),
        run_id=RUN,
        kind="experiment",
        subject=subject,
        against="the score that trained",
        stratum="all",
        verdict=verdict,
    )


def test_parts_of_a_run_are_told_where_the_coach_moved() -> None:
    told = (
        finding("addition, asked today", "as stored"),
        finding("addition, iterations 1 to 5, asked today", "cannot tell"),
        finding("addition, iterations 6 to 10, asked today", "moved"),
    )
    (table,) = finding_tables(told)
    assert list(table.columns[0].cells) == [told[0].subject, told[2].subject]
