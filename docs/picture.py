"""The README's figures: what the terminal shows of a finished run, as SVG, and a table of seeds.

python docs/picture.py     writes docs/quickstart.svg and prints the tables of README and
                           docs/audit.md, and a line of docs/coach.md

They are made from docs/quickstart.json and docs/quickstart_llm_coach.json, which
`mappa bench quickstart` writes.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from mappa_cli.benches.quickstart import (
    PRESET,
    RepeatedResult,
    SeedResult,
    read_result,
)
from mappa_cli.benches.quickstart_coach import ExamMark, ModelCoachResult, Suspicion, coached_speed
from mappa_cli.printing.evaluations import comparison_table, gain
from mappa_cli.printing.runs import iterations_table

DOCS = Path(__file__).parent
LLM_COACH = (
    "the same, as `configs/quickstart_llm_coach.yaml` asks it (brief replies, `coach.own_solution`)"
)
KINDS = (
    *("right over wrong", "right over lucky", "plain over praised"),
    *("success over crash", "work over nothing"),
)
"""As the exam's table has them."""
COLUMNS = 64
# Without the fonts that Rich would have every reader fetch from elsewhere.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def picture(result: SeedResult) -> str:
    """Draw a run's before and after, and its iterations."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(f"$ mappa train --config configs/{PRESET}.yaml", highlight=False)
    console.print(comparison_table(result.held_out))
    console.print(gain(result.held_out), highlight=False)
    console.print(f"$ mappa show {result.run}", highlight=False)
    console.print(iterations_table(result.iterations))
    return console.export_svg(title=result.run, code_format=FORMAT)


def description(result: SeedResult) -> str:
    """Say the picture's figures in words, for those who do not see it."""
    held_out = result.held_out
    before, after = (round(rate * held_out.episodes) for rate in (held_out.before, held_out.after))
    return (
        f"A real run: before {before} of {held_out.episodes} right ({held_out.before:.1%}), after "
        f"{after} ({held_out.after:.1%}); gain {100 * held_out.difference:+.1f}, 95 % interval "
        f"{100 * held_out.low:+.1f} to {100 * held_out.high:+.1f}"
    )


def seeds_table(found: RepeatedResult) -> str:
    """List every seed's figures in Markdown."""
    timed = all(one.command_minutes is not None for one in found.results)
    minutes = "minutes" if timed else "minutes, after the start"
    lines = [
        f"| seed | right before | after | gain, points | 95 % interval | {minutes} | code |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found.results:
        held_out = one.held_out
        took = one.command_minutes if timed and one.command_minutes else one.minutes
        before, after = (
            round(rate * held_out.episodes) for rate in (held_out.before, held_out.after)
        )
        lines.append(
            f"| {one.seed} | {before} of {held_out.episodes} | {after} of {held_out.episodes} | "
            f"{100 * held_out.difference:+.1f} | "
            f"{100 * held_out.low:+.1f} to {100 * held_out.high:+.1f} | {took:.0f} | "
            f"{one.code_version.partition('+')[2]} |"
        )
    return "\n".join(lines)


def exam_rows(found: RepeatedResult, name: str = LLM_COACH) -> str:
    """Say in rows of the exam's table what the coach of the runs reached, each sitting once."""
    marks = dict.fromkeys(one.exam for one in coaches(found) if one.exam is not None)
    return "\n".join(f"| {name} | {' | '.join(_exam_cells(mark))} |" for mark in marks)


def _exam_cells(mark: ExamMark) -> Sequence[str]:
    shares = {line.of: line.share for line in mark.lines}
    passed = "passed" if mark.passed else "failed"
    return (
        f"{_percent(mark.share)} %, {passed}",
        f"{_percent(mark.low)} to {_percent(mark.high)} %",
        *(f"{_percent(shares[kind])} %" for kind in KINDS),
    )


def coach_table(found: RepeatedResult) -> str:
    """List in Markdown what the coach of every seed did, and what the audit says of it."""
    lines = [
        "| seed | scores | none | tokens a second | verdict | what is behind it |",
        "|---|---|---|---|---|---|",
    ]
    for one in found.results:
        if one.coach is not None and one.coach.audit is not None:
            speed, audit = coached_speed(one.coach, one.minutes), one.coach.audit
            behind = "; ".join(map(_suspicion, audit.found)) or "-"
            lines.append(
                f"| {one.seed} | {one.coach.scores} | {one.coach.unscored} | {speed:.0f} | "
                f"{audit.verdict} | {behind} |"
            )
    return "\n".join(lines)


def _suspicion(found: Suspicion) -> str:
    explained = "" if found.sensitivity is None else f", sensitivity value {found.sensitivity:.0%}"
    return (
        f"{found.subject} over {found.against} ({found.of}): {found.points:+.1f} points "
        f"[{found.low:+.1f}, {found.high:+.1f}]{explained}"
    )


def speeds(found: RepeatedResult) -> str:
    """Say how fast the coaches of the runs were."""
    each = [coached_speed(one.coach, one.minutes) for one in found.results if one.coach]
    return f"{min(each):.0f} to {max(each):.0f} tokens a second"


def coaches(found: RepeatedResult) -> Iterator[ModelCoachResult]:
    """Those of the runs that a language model coached."""
    return (one.coach for one in found.results if one.coach is not None)


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


if __name__ == "__main__":
    stored = read_result(DOCS / "quickstart.json")
    (DOCS / "quickstart.svg").write_text(picture(stored.results[0]))
    sys.stdout.write(f"{description(stored.results[0])}\n\n{seeds_table(stored)}\n")
    coached = read_result(DOCS / "quickstart_llm_coach.json")
    for part in (seeds_table, exam_rows, coach_table, speeds):
        sys.stdout.write(f"\n{part(coached)}\n")
