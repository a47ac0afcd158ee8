"""The README's figures: what the terminal shows of a finished run, as SVG, and a table of seeds.

python docs/picture.py     writes docs/quickstart.svg and prints README's tables

They are made from docs/quickstart.json and docs/quickstart_llm_coach.json, which
`mappa bench quickstart` writes.
"""

import re
import sys
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from mappa_cli.benches.quickstart import PRESET, RepeatedResult, SeedResult, read_result
from mappa_cli.printing.evaluations import comparison_table, gain
from mappa_cli.printing.runs import iterations_table

DOCS = Path(__file__).parent
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
    lines = [
        "| seed | right before | after | gain, points | 95 % interval | minutes |",
        "|---|---|---|---|---|---|",
    ]
    for one in found.results:
        held_out = one.held_out
        before, after = (
            round(rate * held_out.episodes) for rate in (held_out.before, held_out.after)
        )
        lines.append(
            f"| {one.seed} | {before} of {held_out.episodes} | {after} of {held_out.episodes} | "
            f"{100 * held_out.difference:+.1f} | "
            f"{100 * held_out.low:+.1f} to {100 * held_out.high:+.1f} | {one.minutes:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    stored = read_result(DOCS / "quickstart.json")
    (DOCS / "quickstart.svg").write_text(picture(stored.results[0]))
    sys.stdout.write(f"{description(stored.results[0])}\n\n{seeds_table(stored)}\n")
    sys.stdout.write(f"\n{seeds_table(read_result(DOCS / 'quickstart_llm_coach.json'))}\n")
