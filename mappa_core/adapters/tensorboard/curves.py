"""Metrics as TensorBoard event files: `tensorboard --logdir MAPPA_HOME/tensorboard`.

<folder>/<run name>/events.out.tfevents...   scalars by step, the configuration as text
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter

from mappa_core.domain.errors import TrackerError
from mappa_core.domain.records import Run, RunStatus


class TensorBoardCurves:
    """`ports.Curves` in files."""

    def __init__(self, folder: Path, run: Run) -> None:
        """Open another file in the run's folder.

        Args:
            folder: Where each run gets a folder.
            run: Whose metrics.

        Raises:
            TrackerError: The files cannot be written.
        """
        own = folder / run.name
        # Files are named by the second: without a number, a quick resume would truncate one.
        number = len(list(own.glob("events.*")))
        try:
            self._writer = SummaryWriter(str(own), filename_suffix=f".{number}")
        except OSError as error:
            raise TrackerError(f"TensorBoard's files cannot go to {own}: {error}") from error
        self._writer.add_text("config", f"```\n{json.dumps(dict(run.config), indent=2)}\n```", 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, status: RunStatus) -> None:  # noqa: ARG002
        """Close the file; TensorBoard knows no status."""
        self._writer.close()
