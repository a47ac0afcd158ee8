"""Metrics in Weights & Biases, online or as files that `wandb sync` sends later.

The client reads its key (`WANDB_API_KEY`) and its mode (`WANDB_MODE`) from the environment by
itself: neither passes through here, so neither can get into a record.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import wandb

from mappa_core.core.errors import TrackerError
from mappa_core.core.records.runs import Run, RunStatus

STEP = "iteration"


class WandbCurves:
    """`Curves` in a W&B run with the id of ours."""

    def __init__(self, folder: Path, project: str, run: Run) -> None:
        """Open the run, or go on with it.

        Args:
            folder: Where W&B keeps its own files.
            project: Where the run is listed.
            run: Whose metrics.

        Raises:
            TrackerError: W&B refused, or does not answer.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with _boundary(f"open run {run.name}"):
            # A run's own `silent` comes too late for what is said before it is open.
            wandb.setup(wandb.Settings(silent=True))
            self._run = wandb.init(
                project=project,
                group=run.team,
                name=run.name,
                id=run.id.hex,
                resume="allow",
                # Where another run is open in this process, its curves are not ours.
                reinit="create_new",
                dir=folder,
                config=dict(run.config),
                # Nothing but our figures: no console, no machine, no source code.
                settings=wandb.Settings(
                    silent=True,
                    console="off",
                    disable_git=True,
                    x_disable_meta=True,
                    x_disable_stats=True,
                ),
            )
            # Steps of W&B's own only go up; a resumed run may log an iteration again.
            self._run.define_metric(STEP)
            self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        with _boundary(f"log iteration {step}"):
            self._run.log({**metrics, STEP: step})

    def close(self, status: RunStatus) -> None:
        """Send what is left and close the run."""
        with _boundary("close the run"):
            self._run.finish(exit_code=0 if status is RunStatus.COMPLETED else 1)


@contextmanager
def _boundary(doing: str) -> Generator[None]:
    try:
        yield
    except wandb.Error as error:
        why = " ".join(str(error).split())
        raise TrackerError(f"Weights & Biases cannot {doing}: {why}") from error
