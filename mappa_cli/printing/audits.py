"""Prints what audits say, as tables for a terminal."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from mappa_cli.printing.console import make_table
from mappa_core.audit.records import Exam, Finding
from mappa_core.audit.report.text import TITLES, interval, sensitivity
from mappa_core.audit.statistics.counting import Rate
from mappa_core.audit.statistics.updates import OtherUpdate

if TYPE_CHECKING:
    # It imports what plays episodes; a stored run is audited without.
    from mappa_core.audit.probes.probing import ProbeResult
    from mappa_core.audit.run_audit import RunAudit
    from mappa_core.audit.statistics.agreement import BesideTrainer
    from mappa_core.audit.statistics.noise import Noise


def finding_tables(findings: Sequence[Finding]) -> Iterator[Table]:
    """One table per question that has an answer."""
    columns = ("of", "against", "episodes", "estimate", "unit", "n", "verdict")
    for kind, title in TITLES.items():
        told = [each for each in findings if each.kind == kind and _is_told(each)]
        rows = [_finding_row(finding) for finding in told]
        if rows:
            yield make_table(title, columns, rows)


def _is_told(finding: Finding) -> bool:
    """Leave parts of a run that are scored today as they were to the page, which has them all."""
    part = finding.kind == "experiment" and ", iterations " in finding.subject
    return not part or finding.verdict == "moved"


def watch_lines(audited: "RunAudit") -> Iterator[str]:
    """Yield what changed while it trained, and what it would take to notice a smaller change."""
    from mappa_core.audit.needed import more_anchors

    if audited.result.drift is not None:
        yield from audited.result.drift.lines
    if (more := more_anchors(audited.seen)) is not None:
        yield more


def _finding_row(row: Finding) -> tuple[str, ...]:
    named = row.iteration is None or row.kind == "onset"
    of = row.subject if named else f"{row.subject} {row.iteration}"
    more, unseen = row.detail.get("more_actions"), row.detail.get("seen")
    verdict = f"{row.verdict} (+{more} actions)" if more and row.verdict else row.verdict
    verdict = f"{verdict}{sensitivity(row)}"
    verdict = f"{verdict}: {unseen}" if unseen else verdict
    return of, row.against, row.stratum, interval(row), row.unit, str(row.actions), verdict


def rate_table(rates: Sequence[Rate]) -> Table:
    """The self-test's rates beside their promises."""
    columns = ("simulated", "rate", "95 % interval", "promise", "kept")
    return make_table("", columns, map(_rate_row, rates))


def _rate_row(rate: Rate) -> tuple[str, ...]:
    low, high = rate.interval()
    kept = "yes" if rate.kept else "no"
    return rate.name, f"{rate.share:.1%}", f"{low:.1%} to {high:.1%}", rate.promise, kept


def update_table(name: str, updates: Sequence[OtherUpdate]) -> Table:
    """Each update as another coach would have made it."""
    columns = ("agent", "iteration", "scored by both", "other sign", "own coach again")
    columns += ("cosine", "own coach again", "differs")
    rows = [
        (
            update.agent,
            str(update.iteration),
            str(update.actions),
            str(update.flipped),
            "?" if update.floor is None else str(update.floor.flipped),
            f"{update.cosine:.3f}",
            "?" if update.floor is None else f"{update.floor.cosine:.3f}",
            "?" if update.differs is None else "yes" if update.differs else "no",
        )
        for update in updates
    ]
    return make_table(f"had {name} been the coach", columns, rows)


def beside_table(name: str, lines: "Sequence[BesideTrainer]") -> Table:
    """How another coach's scores agree with those that trained, by agent."""
    columns = ("agent", "scored by both", "correlation", "trained", "other")
    columns += ("other minus trained, 95 % interval",)
    return make_table(f"{name} beside the coach that trained", columns, map(_beside_row, lines))


def _beside_row(line: "BesideTrainer") -> tuple[str, ...]:
    low, high = line.difference.interval()
    known = math.isfinite(line.difference.standard_error)
    ends = f"{low:+.2f} to {high:+.2f}" if known else "unknown"
    return (
        line.agent,
        str(line.actions),
        "?" if line.correlation is None else f"{line.correlation:+.2f}",
        f"{line.trained:.2f}",
        f"{line.other:.2f}",
        f"{line.difference.value:+.2f} ({ends})",
    )


def exam_table(exam: Exam) -> Table:
    """How often a coach put work of known worth in its order, by kind of pair and by agent."""
    columns = ("pairs", "in order", "90 % interval", "n")
    rows = [
        (line.of, f"{line.share:.0%}", f"{line.low:.0%} to {line.high:.0%}", str(line.pairs))
        for line in exam.lines
    ]
    return make_table("Work whose order is known", columns, rows)


def before_tables(found: "ProbeResult") -> Iterator[Table]:
    """What a coach made of questions that should not matter to it."""
    if found.rubric:
        rows = [(finding.where, finding.what) for finding in found.rubric]
        yield make_table("How the rubric treats task types", ("rubric", "finding"), rows)
    if found.caps:
        columns = ("agent", "policy", "at most, by task type", "spread")
        rows = [(c.agent, c.policy, _points(c.points), f"{c.spread:.1f}") for c in found.caps]
        yield make_table("What the rubric pays for nothing", columns, rows)
    yield _nulls(found)
    yield _probes(found)
    if (noise := found.noise) is not None:
        facts = {
            "within an action": f"{noise.within_deviation:.2f} points",
            "reliability (ICC)": f"{noise.reliability:.2f}",
            "95 % interval": _ends(noise),
            "flips": f"{noise.flips:.0%}",
            "repeats advised": str(noise.repeats or "more than 64"),
        }
        yield make_table("Noise floor", tuple(facts), [tuple(facts.values())])


def _ends(noise: "Noise") -> str:
    if noise.low is None or noise.high is None:
        return "not known: below three problems"
    return f"{noise.low:.2f} to {noise.high:.2f}"


def _nulls(found: "ProbeResult") -> Table:
    columns = ("agent", "policy", "mean score by task type", "spread", "verdict")
    rows = [
        (agent, null.policy, _points(null.means), f"{null.spread:.2f}", null.judged.verdict)
        for agent, nulls in found.nulls.items()
        for null in nulls
    ]
    return make_table("What doing nothing earns", columns, rows)


def _probes(found: "ProbeResult") -> Table:
    rows: list[tuple[str, ...]] = []
    for probe in found.probes:
        low, high = probe.judged.estimate.interval()
        points = f"{probe.judged.estimate.value:+.2f} ({low:+.2f} to {high:+.2f})"
        verdict = "may matter" if probe.may_matter else probe.judged.verdict
        rows.append((probe.feature, points, str(probe.pairs), verdict))
    columns = ("feature", "points, 95 % interval", "pairs", "verdict")
    return make_table("The same work, one thing changed", columns, rows)


def _points(points: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.1f}" for name, value in points.items())
