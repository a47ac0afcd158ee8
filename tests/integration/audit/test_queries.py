"""Every number in the report, and the SQL that gives it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import unescape

import psycopg
import pytest
from psycopg.rows import dict_row

from mappa_core.audit.findings import as_finding
from mappa_core.audit.records import Finding
from mappa_core.audit.report.page import html
from mappa_core.audit.report.text import TITLES, interval
from mappa_core.audit.run_audit import RunAudit, audit_run
from mappa_core.audit.store import AuditStore
from mappa_core.audit.watch.alerts import Alert
from mappa_core.store.connection import for_psql
from tests.builders import make_run

RUN = make_run("biased-1")
Row = Mapping[str, object]
WORKED_OUT = {"onset", "drift", "model_change"}
"""Kinds whose figure is worked out from rows and stored; all others come from SQL as it stands."""


@dataclass(frozen=True)
class Printed:
    """A row of the report."""

    figure: str
    numbers: tuple[str, ...]
    """p, actions, problems."""
    queries: tuple[str, ...]


def rows_of(page: str) -> Iterator[Printed]:
    for found in re.findall(r"<tr><td>(.*?)(?=<tr>|</table>)", page, re.DOTALL):
        cells = re.split(r"<td[^>]*>", found)
        (figure,) = re.findall(r"<summary>(.*?)</summary>", found)
        (pre,) = re.findall(r"<pre>(.*?)</pre>", found, re.DOTALL)
        queries = [part for part in unescape(pre).split(";\n\n") if part.strip()]
        yield Printed(
            figure=unescape(figure),
            numbers=tuple(cells[5:8]),
            queries=tuple(query.rstrip().rstrip(";") for query in queries),
        )


@pytest.fixture
def audited(rich_url: str, audit: AuditStore) -> RunAudit:
    alert = Alert(
        kind="health",
        stop="health",
        subject="solver, share unparsed",
        what="solver: 3% of its replies are unreadable",
        iteration=2,
        estimate=1 / 37,
        unit="share unparsed",
        limit=0.01,
        actions=36,
        sql=audit_sql_of_health(),
    )
    audit.add([as_finding(alert.figure(), RUN.id)])
    return audit_run(audit, RUN.name, 0.5, record=True, simulations=0)


def audit_sql_of_health() -> str:
    from mappa_core.audit import sql

    return sql.health("agent = 'solver' AND iteration = 2", estimate="unparsed")


@pytest.fixture
def connection(rich_url: str) -> Iterator[psycopg.Connection[Row]]:
    with psycopg.connect(for_psql(rich_url), row_factory=dict_row) as opened:  # pyright: ignore[reportArgumentType]
        opened.execute("SET ROLE mappa_auditor")
        yield opened  # pyright: ignore[reportReturnType]


def test_every_kind_of_figure_is_there(audited: RunAudit) -> None:
    assert {finding.kind for finding in audited.result.findings} == set(TITLES)


def test_the_sql_of_a_finding_gives_its_figure(
    audited: RunAudit, connection: psycopg.Connection[Row]
) -> None:
    for finding in audited.result.findings:
        rows = connection.execute(finding.sql.encode()).fetchall()
        assert rows, finding
        if finding.kind in WORKED_OUT:
            continue
        (row,) = rows
        assert row["estimate"] == pytest.approx(finding.estimate, abs=1e-9), finding
        shown = {"actions": finding.actions, **finding.detail}
        if finding.problems:
            shown["problems"] = finding.problems
        for name in set(row) & set(shown):
            assert row[name] == pytest.approx(shown[name]), (finding, name)
        assert "actions" in row, finding


def test_the_report_prints_what_its_queries_give(
    audited: RunAudit, connection: psycopg.Connection[Row]
) -> None:
    page = html(audited.seen, audited.result, (), recorded=True)
    by_id = {str(finding.id): finding for finding in audited.result.findings}
    printed = list(rows_of(page))
    assert len(printed) == len(by_id)
    for row in printed:
        first, stored = row.queries
        (again,) = connection.execute(stored.encode()).fetchall()
        finding = by_id[re.findall(r"finding_id = '(.*?)'", stored)[0]]
        assert row.figure == interval(_with(finding, again))
        p_value = again["p_value"]
        assert row.numbers[0] == ("" if p_value is None else f"{p_value:.3g}")
        assert row.numbers[1:] == (str(again["actions"]), str(again["problems"] or ""))
        given = connection.execute(first.encode()).fetchall()
        if "gives the figure" in first:
            number = re.match(r"[+-]?[0-9.e+-]+", row.figure)
            assert number is not None
            assert float(number[0]) == pytest.approx(given[0]["estimate"], rel=0.005, abs=0.0051)


def _with(finding: Finding, row: Row) -> Finding:
    from dataclasses import replace

    return replace(finding, estimate=row["estimate"], low=row["low"], high=row["high"])  # pyright: ignore[reportArgumentType]


def test_what_is_drawn_and_the_size_have_their_sql_too(
    audited: RunAudit, connection: psycopg.Connection[Row]
) -> None:
    page = html(audited.seen, audited.result, (), recorded=True)
    assert page.count("<svg") == 5
    queries = re.findall(
        r"</svg>\s*<details><summary>SQL</summary><pre>(.*?)</pre>", page, re.DOTALL
    )
    assert len(queries) == 5
    for several in queries:
        for query in unescape(several).rstrip(";").split(";\n\n"):
            assert connection.execute(query.encode()).fetchall()
    size = re.findall(
        r"<summary>(\d+) actions on (\d+) problems</summary><pre>(.*?)</pre>", page, re.S
    )
    ((actions, problems, query),) = size
    (row,) = connection.execute(unescape(query).encode()).fetchall()
    assert (row["actions"], row["problems"]) == (int(actions), int(problems))


def test_a_page_of_an_audit_that_wrote_nothing_names_no_rows(audited: RunAudit) -> None:
    page = html(audited.seen, audited.result, (), recorded=False)
    assert "audit.findings WHERE finding_id" not in page
    assert "nothing was written to this database" in page
