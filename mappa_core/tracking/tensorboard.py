"""Metrics as TensorBoard event files: `tensorboard --logdir MAPPA_HOME/tensorboard`.

<folder>/<run name>/events.out.tfevents...   scalars by step, the configuration as text

Written by the thread that logs: tensorboardX has its own writer hand events to a thread. One that
a full disk has ended is waited for without end, and what it has not written yet is lost with the
process.
"""

import json
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
from tensorboardX.summary import scalar, text

from mappa_core.core.errors import TrackerError
from mappa_core.core.records.runs import Run, RunStatus


class TensorBoardCurves:
    """`Curves` in files."""

    def __init__(self, folder: Path, run: Run) -> None:
        """Open another file in the run's folder.

        Args:
            folder: Where each run gets a folder.
            run: Whose metrics.

        Raises:
            TrackerError: The files cannot be written.
        """
        self._folder = folder / run.name
        self._closed = False
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
            # Files are named by the second: without a number, a quick resume would truncate one.
            number = len(list(self._folder.glob("events.*")))
            self._file = EventsWriter(str(self._folder / "events"), f".{number}")
            self._add(text("config", f"```\n{json.dumps(dict(run.config), indent=2)}\n```"), 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        with self._writing():
            for name, value in metrics.items():
                self._add(scalar(name, value), step)
            self._file.flush()

    def close(self, status: RunStatus) -> None:  # noqa: ARG002
        """Close the file; safe to call twice. TensorBoard knows no status."""
        if self._closed:
            return
        self._closed = True
        with self._writing():
            self._file.close()

    def _add(self, summary: object, step: int) -> None:
        self._file.write_event(Event(wall_time=time.time(), step=step, summary=summary))

    @contextmanager
    def _writing(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise TrackerError(
                f"TensorBoard's files cannot go to {self._folder}: {error.strerror or error}"
            ) from error
