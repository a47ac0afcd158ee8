"""What TensorBoard would read is what was logged, undefined figures left out."""

import math
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from mappa_core.core.errors import TrackerError
from mappa_core.core.records.runs import RunStatus
from mappa_core.tracking.opening import WithCurves
from mappa_core.tracking.tensorboard import TensorBoardCurves
from tests.builders import make_run
from tests.fakes.tracking import MemoryTracker
from tests.full_disk import largest_file


def events(folder: Path) -> Iterator[Event]:
    """The records of all event files, in TFRecord's framing: length, check, data, check."""
    for file in sorted(folder.glob("events.out.tfevents.*")):
        content, at = file.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            yield Event.FromString(content[at + 12 : at + 12 + length])
            at += 12 + length + 4


def scalars(folder: Path) -> list[tuple[int, str, float]]:
    return [
        (event.step, value.tag, value.simple_value)
        for event in events(folder)
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


def test_metrics_go_to_both_and_a_resumed_run_goes_on_in_its_folder(tmp_path: Path) -> None:
    run, memory = make_run("both"), MemoryTracker()
    for step in (1, 2):
        tracker = WithCurves(memory, [partial(TensorBoardCurves, tmp_path)])
        name = tracker.start(run)
        tracker.log(name, step, {"solver/mean_score": 5.0 + step, "kl_base": math.nan})
        tracker.end(name, RunStatus.INTERRUPTED)
    assert scalars(tmp_path / "both") == [
        (1, "solver/mean_score", 6.0),
        (2, "solver/mean_score", 7.0),
    ]
    assert memory.metrics[name] == {(1, "solver/mean_score"): 6.0, (2, "solver/mean_score"): 7.0}
    (config, *_) = [
        value.tensor.string_val[0].decode()
        for event in events(tmp_path / "both")
        for value in event.summary.value
        if value.tag.startswith("config")
    ]
    assert '"problems": 12' in config


def test_a_folder_that_cannot_be_written_is_a_tracker_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrackerError, match="TensorBoard's files cannot go to"):
        TensorBoardCurves(tmp_path / "file", make_run("blocked"))


def test_a_full_disk_is_a_tracker_error_and_not_a_wait(tmp_path: Path) -> None:
    curves = TensorBoardCurves(tmp_path, make_run("full"))
    with largest_file(600), pytest.raises(TrackerError, match=r"cannot go to .*full: File too"):
        curves.log(1, {f"agent-{number}/mean_score": 5.0 for number in range(100)})
    curves.close(RunStatus.FAILED)


def test_what_was_logged_is_in_the_file_at_once(tmp_path: Path) -> None:
    curves = TensorBoardCurves(tmp_path, make_run("live"))
    curves.log(3, {"solver/mean_score": 5.0})
    assert scalars(tmp_path / "live") == [(3, "solver/mean_score", 5.0)]
    curves.close(RunStatus.COMPLETED)


class Refusing(MemoryTracker):
    """Is away when the run ends."""

    def end(self, tracker_run_id: str, status: RunStatus) -> None:
        raise TrackerError("MLflow is away")


def test_curves_are_closed_where_the_tracker_of_record_refuses(tmp_path: Path) -> None:
    tracker = WithCurves(Refusing(), [partial(TensorBoardCurves, tmp_path)])
    name = tracker.start(make_run("closed"))
    with pytest.raises(TrackerError, match="MLflow is away"):
        tracker.end(name, RunStatus.FAILED)
    (file,) = (tmp_path / "closed").iterdir()
    assert not [each for each in Path("/proc/self/fd").iterdir() if each.resolve() == file]
