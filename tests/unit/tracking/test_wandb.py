"""What Weights & Biases would be sent is what was logged; nothing is sent here."""

import json
import math
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mappa_core.core.errors import TrackerError
from mappa_core.core.records.runs import RunStatus
from mappa_core.tracking.opening import WithCurves
from tests.builders import make_run
from tests.fakes.tracking import MemoryTracker

wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")

KEY = "0123456789abcdef" * 3
BLOCK_BYTES = 32_768
HEADER = struct.Struct("<IHB")
"""Of each piece of a record: check, length, and whether it is whole, first, middle or last."""


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    yield
    wandb.teardown()


def records(file: Path) -> Iterator[bytes]:
    """The records of a `.wandb` file, in LevelDB's framing after a header of seven bytes."""
    content, at, record = file.read_bytes(), 7, b""
    while at < len(content):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER.size:
            at += left
            continue
        _, length, kind = HEADER.unpack_from(content, at)
        at += HEADER.size
        record += content[at : at + length]
        at += length
        if kind in (1, 4):
            yield record
            record = b""


def points(folder: Path) -> Iterator[dict[str, float]]:
    """What was logged, of all files in order, without W&B's own keys."""
    from wandb.proto.wandb_internal_pb2 import Record

    # A run that says it is finished may not be written yet; a process that has ended is.
    wandb.teardown()
    for file in sorted(folder.rglob("*.wandb")):
        for data in records(file):
            items = Record.FromString(data).history.item
            if items:
                named = {item.key or "/".join(item.nested_key): item.value_json for item in items}
                yield {
                    key: json.loads(value)
                    for key, value in named.items()
                    if not key.startswith("_")
                }


@pytest.mark.usefixtures("offline")
def test_metrics_go_to_both_and_the_key_to_neither(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Next to a client of language models, W&B would advertise its tracing.
    import mcp  # noqa: F401

    from mappa_core.tracking.wandb import WandbCurves

    run, memory = make_run("both"), MemoryTracker()
    for step in (1, 2):
        tracker = WithCurves(memory, [partial(WandbCurves, tmp_path, "mappa-tests")])
        name = tracker.start(run)
        tracker.log(name, step, {"solver/mean_score": 5.0 + step, "kl_base": math.nan})
        tracker.end(name, RunStatus.COMPLETED)
    assert list(points(tmp_path)) == [
        {"solver/mean_score": 6.0, "iteration": 1},
        {"solver/mean_score": 7.0, "iteration": 2},
    ]
    assert memory.metrics[name] == {(1, "solver/mean_score"): 6.0, (2, "solver/mean_score"): 7.0}
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    files = [file for file in tmp_path.rglob("*") if file.is_file() and not file.is_symlink()]
    assert any(run.id.hex in file.name for file in files)
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


@pytest.mark.usefixtures("offline")
def test_two_runs_of_one_process_are_kept_apart_and_a_closed_one_takes_no_more(
    tmp_path: Path,
) -> None:
    from mappa_core.tracking.wandb import WandbCurves

    one, other = (WandbCurves(tmp_path / name, "mappa-tests", make_run(name)) for name in "ab")
    one.log(1, {"loss": 1.0})
    other.log(1, {"loss": 2.0})
    for curves in (one, other):
        curves.close(RunStatus.COMPLETED)
    told = {name: list(points(tmp_path / name)) for name in "ab"}
    assert told == {"a": [{"loss": 1.0, "iteration": 1}], "b": [{"loss": 2.0, "iteration": 1}]}
    with pytest.raises(TrackerError, match=r"^Weights & Biases cannot log iteration 2: "):
        one.log(2, {"loss": 3.0})
