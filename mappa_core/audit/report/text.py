"""Findings in words: for a terminal, a Prefect artifact and the report."""

from collections.abc import Mapping, Sequence

from mappa_core.audit.findings import AuditInput, AuditResult
from mappa_core.audit.records import Finding
from mappa_core.audit.statistics.counting import Rate, Unknowable
from mappa_core.audit.statistics.looks import spent
from mappa_core.audit.statistics.observational import ALARMS
from mappa_core.audit.statistics.verdicts import ALPHA

TITLES: Mapping[str, str] = {
    "experiment": "The same action, one thing changed, scored again",
    "task_type": "Does the coach prefer a task type, for equal work?",
    "task_type_cell": "And by agent, in parts of the run, and by length?",
    "onset": "Since when?",
    "update_share": "How much of each update came from the bias?",
    "specialisation": "Did success on the favoured type rise more? (It may be easier to learn.)",
    "drift": "Did the coach, its rubric or the policy change?",
    "model_change": "Did the model behind the coach change?",
    "alert": "What was said while it trained",
    "unscored": "What could the missing scores hide?",
    "health": "Can these scores teach?",
    "divergence": "Do scores rise where success does not?",
    "noise": "How much is the coach's mood?",
    "second_coach": "Would another coach have said so?",
    "people": "Would people have said so?",
    "association": "What else goes with the score? (It may be deserved.)",
}


_FAMILY: Mapping[str, str] = {
    "experiment": "experiment",
    "task_type": "task type",
    "task_type_cell": "task type, in part",
    "onset": "onset",
}
"""What a Prefect artifact has rows of, and what it calls them."""


def markdown(seen: AuditInput, result: AuditResult, rates: Sequence[Rate | Unknowable]) -> str:
    """An audit in a few lines, for a Prefect artifact."""
    family = [finding for finding in result.findings if finding.kind in _FAMILY]
    rows = "\n".join(
        f"| {_FAMILY[f.kind]} | {_compared(f)} | {f.stratum} "
        f"| {interval(f)} | {f.verdict}{sensitivity(f)} |"
        for f in family
    )
    lines = () if result.drift is None else result.drift.lines
    drift = "".join(f"While it trained: {line}.\n\n" for line in lines)
    table = (
        f"# {seen.run.name}: {result.verdict}\n\n"
        f"| figure | of | episodes | estimate, 95 % interval | verdict |\n|---|---|---|---|---|\n"
        f"{rows}\n\n{drift}{look_of(seen)}\n"
    )
    said = "\n".join(f"* {said_of(rate)}" for rate in rates)
    heading = "How often such an audit is wrong or right, by simulation:"
    return f"{table}\n{heading}\n\n{said}\n" if rates else table


def said_of(rate: Rate | Unknowable) -> str:
    """A rate with its interval, or why there is none."""
    if isinstance(rate, Unknowable):
        return f"{rate.name}: cannot be known from scores ({rate.reason})"
    low, high = rate.interval()
    return (
        f"{rate.name}: {rate.share:.0%} (95 % interval {low:.0%} to {high:.0%}, {rate.runs} "
        "simulated)"
    )


def look_of(seen: AuditInput) -> str:
    """Which look at the run this is, what an alarm takes at it, and whether it is counted."""
    said = (
        f"look {seen.look} at this run: an alarm takes p < {ALPHA * spent(seen.look):.2g} over all "
        f"comparisons, so that at most {ALPHA:.0%} of honest coaches are ever accused"
    )
    if seen.counted:
        return said
    return (
        f"{said}; nothing is written, so this look is not counted: each repeat as the run grows "
        f"is look {seen.look} again, and together they accuse more"
    )


def _compared(finding: Finding) -> str:
    if finding.kind == "experiment":
        return finding.subject
    return f"{finding.subject} against {finding.against}"


def sensitivity(finding: Finding) -> str:
    """Beside a gap that is there: what it exceeds, and what it would take to explain it away."""
    beyond, value = finding.detail.get("beyond"), finding.detail.get("sensitivity")
    if finding.verdict not in ALARMS or not beyond:
        return ""
    explained = f"; sensitivity value {value:.0%}" if isinstance(value, float) else ""
    return f" ({beyond} exceeded{explained})"


def interval(finding: Finding) -> str:
    """An estimate with its interval, in words."""
    if finding.estimate is None:
        return "-"
    whole = finding.unit == "iteration"
    form = "{:.0f}" if whole else "{:+.2f}" if finding.low is not None else "{:.3g}"
    text = form.format(finding.estimate)
    if finding.low is None or finding.high is None:
        return text
    return f"{text} ({form.format(finding.low)} to {form.format(finding.high)})"
