"""The README's picture: what the terminal shows of a finished run, as SVG.

python docs/picture.py RUN > docs/quickstart.svg
"""

import sys
from io import StringIO

from rich.columns import Columns
from rich.console import Console, Group

from flows.tables import comparison_table, gain, iterations_table
from mappa_core.bootstrap import opened_store
from mappa_core.config import TrainConfig
from mappa_core.domain.records import Run
from mappa_core.evaluation.comparison import compare
from mappa_core.evaluation.samples import successes_of
from mappa_core.ports import Store
from mappa_core.settings import Settings

COLUMNS = 100


def picture(store: Store, run: Run) -> str:
    """An SVG of the run's iterations beside its before and after."""
    config = TrainConfig.model_validate(run.config)
    before, after = (
        successes_of(store.held_out_episodes(run.id, step))
        for step in (0, config.rollout.iterations)
    )
    drawn = {"resamples": config.evaluation.bootstrap, "seed": config.seed}
    comparison = compare(before, after, **drawn)
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(f"$ mappa train --config configs/{config.name}.yaml")
    tables = (
        iterations_table(store.episode_summaries(run.id)),
        Group(comparison_table(comparison), gain(comparison)),
    )
    console.print(Columns(tables, padding=(0, 3)))
    return console.export_svg(title=run.name)


if __name__ == "__main__":
    with opened_store(Settings()) as opened:
        sys.stdout.write(picture(opened, opened.run(sys.argv[1])))
