"""What audits say, as tables for a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from mappa_cli.printing.console import titled
from mappa_core.audit.records import Finding
from mappa_core.audit.report.text import TITLES, interval
from mappa_core.audit.statistics.selftest import Rate
from mappa_core.audit.time_machine import OtherUpdate

if TYPE_CHECKING:
    # It imports what plays episodes; a stored run is audited without.
    from mappa_core.audit.probes.probing import Examined


def finding_tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """One table per question that has an answer."""
    for kind, title in TITLES.items():
        rows = [finding for finding in findings if finding.kind == kind]
        if not rows:
            continue
        columns = ("of", "against", "episodes", "estimate", "unit", "n", "verdict")
        table = titled(title, *columns)
        for row in rows:
            of = row.subject if row.iteration is None else f"{row.subject} {row.iteration}"
            of = row.subject if row.kind == "onset" else of
            more = row.detail.get("more_actions")
            verdict = f"{row.verdict} (+{more} actions)" if more and row.verdict else row.verdict
            table.add_row(
                of, row.against, row.stratum, interval(row), row.unit, str(row.actions), verdict
            )
        yield table


def rate_table(rates: Sequence[Rate]) -> Table:
    """The self-test's rates beside their promises."""
    table = Table("simulated", "rate", "95 % interval", "promise", "kept")
    for rate in rates:
        low, high = rate.interval()
        kept = "yes" if rate.kept else "no"
        table.add_row(
            rate.name, f"{rate.share:.1%}", f"{low:.1%} to {high:.1%}", rate.promise, kept
        )
    return table


def update_table(name: str, updates: Sequence[OtherUpdate]) -> Table:
    """Each update as another coach would have made it."""
    columns = ("agent", "iteration", "scored by both", "other sign", "likeness", "differs")
    table = titled(f"had {name} been the coach", *columns)
    for update in updates:
        table.add_row(
            update.agent,
            str(update.iteration),
            str(update.actions),
            str(update.flipped),
            f"{update.likeness:.3f}",
            "yes" if update.differs else "no",
        )
    return table


def before_tables(found: "Examined") -> Iterator[Table]:
    """What a coach made of questions that should not matter to it."""
    if found.rubric:
        lint = titled("How the rubric treats task types", "rubric", "finding")
        for finding in found.rubric:
            lint.add_row(finding.where, finding.what)
        yield lint
    if found.caps:
        yield _caps(found)
    yield _nulls(found)
    yield _probes(found)
    if found.noise is not None:
        yield _noise(found)


def _caps(found: "Examined") -> Table:
    columns = ("agent", "policy", "at most, by task type", "spread")
    table = titled("What the rubric pays for nothing", *columns)
    for cap in found.caps:
        table.add_row(cap.agent, cap.policy, _points(cap.points), f"{cap.spread:.1f}")
    return table


def _nulls(found: "Examined") -> Table:
    columns = ("agent", "policy", "mean score by task type", "spread", "verdict")
    table = titled("What doing nothing earns", *columns)
    for agent, nulls in found.nulls.items():
        for null in nulls:
            spread, verdict = f"{null.spread:.2f}", null.judged.verdict
            table.add_row(agent, null.policy, _points(null.means), spread, verdict)
    return table


def _probes(found: "Examined") -> Table:
    columns = ("feature", "points, 95 % interval", "pairs", "verdict")
    table = titled("The same work, one thing changed", *columns)
    for probe in found.probes:
        low, high = probe.judged.estimate.interval()
        points = f"{probe.judged.estimate.value:+.2f} ({low:+.2f} to {high:+.2f})"
        verdict = "may matter" if probe.may_matter else probe.judged.verdict
        table.add_row(probe.feature, points, str(probe.pairs), verdict)
    return table


def _noise(found: "Examined") -> Table:
    columns = ("within an action", "reliability (ICC)", "95 % interval", "flips", "repeats advised")
    table = titled("Noise floor", *columns)
    if found.noise is not None:
        noise = found.noise
        table.add_row(
            f"{noise.within_deviation:.2f} points",
            f"{noise.reliability:.2f}",
            f"{noise.low:.2f} to {noise.high:.2f}",
            f"{noise.flips:.0%}",
            str(noise.repeats or "more than 64"),
        )
    return table


def _points(points: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in points.items())
