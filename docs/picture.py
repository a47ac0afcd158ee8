"""The README's picture: what the terminal shows of a finished run, as SVG.

python docs/picture.py RUN > docs/quickstart.svg
"""

import re
import sys
from io import StringIO

from rich.console import CONSOLE_SVG_FORMAT, Console

from mappa_cli.printing.evaluations import comparison_table, gain
from mappa_cli.printing.runs import iterations_table
from mappa_core.app.config import TrainConfig
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import Settings
from mappa_core.evaluate.comparison import compare
from mappa_core.evaluate.report import successes_of
from mappa_core.store.opening import opened_store
from mappa_core.store.store import Store

COLUMNS = 64
# Without the fonts that Rich would have every reader fetch from elsewhere.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def picture(store: Store, run: Run) -> str:
    """An SVG of the run's before and after, and of its iterations."""
    config = TrainConfig.model_validate(run.config)
    before, after = (
        successes_of(store.episodes.list_episodes(run.id, "held_out", step))
        for step in (0, config.rollout.iterations)
    )
    drawn = {"resamples": config.evaluation.bootstrap, "seed": config.seed}
    comparison = compare(before, after, **drawn)
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(f"$ mappa train --config configs/{config.name}.yaml", highlight=False)
    console.print(comparison_table(comparison))
    console.print(gain(comparison), highlight=False)
    console.print(f"$ mappa show {run.name}", highlight=False)
    console.print(iterations_table(store.episodes.list_episodes(run.id)))
    return console.export_svg(title=run.name, code_format=FORMAT)


if __name__ == "__main__":
    with opened_store(Settings()) as opened:
        sys.stdout.write(picture(opened, opened.runs.get_run(sys.argv[1])))
