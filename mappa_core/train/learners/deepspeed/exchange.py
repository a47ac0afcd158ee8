"""Writes tasks for the ranks and reads their replies, which `cluster.inbox` has the places of.

    .job-*/job.json       a task, in a folder of its own; beside it the reply

An update that is taken up again removes the folders of earlier attempts, and ranks whose task is
gone write no checkpoint: those of a worker that was taken for dead may compute on.
"""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from mappa_core.cluster.inbox import reply_file
from mappa_core.cluster.storage import Storage
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.checkpoint_learner import UpdateJob, UpdateResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """Work for the ranks: an update, or else the log-probabilities of actions."""

    base_model: str
    policy: PolicyVersion
    learner: LearnerConfig
    update: UpdateJob | None = None
    actions: tuple[ScoredAction, ...] = ()
    storage: Storage | None = None
    """Where checkpoints are, for ranks that do not see the learner's files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReply:
    """What the first rank found."""

    update: UpdateResult | None = None
    logprobs: tuple[tuple[float, ...], ...] = ()
    error: str | None = None
    """One line, where something outside failed."""
    disk_full: bool = False


_TASK, _REPLY = TypeAdapter(RankTask), TypeAdapter(RankReply)


@contextmanager
def written_task(directory: Path, task: RankTask) -> Generator[Path]:
    """Write the task's file for the ranks, in a folder of `directory` that goes with the block."""
    prefix = ".job-"
    if task.update is not None:
        prefix = f".job-{task.policy.id}-"
        for earlier in directory.glob(f"{prefix}*"):
            shutil.rmtree(earlier, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory) as folder:
        file = Path(folder) / "job.json"
        file.write_bytes(_TASK.dump_json(task))
        yield file


def read_task(file: Path) -> RankTask:
    """Read the task as it was written."""
    return _TASK.validate_json(file.read_bytes())


def write_reply(file: Path, reply: RankReply) -> None:
    """Write the reply to the task in `file`, whole or not at all."""
    unfinished = file.with_suffix(".writing")
    unfinished.write_bytes(_REPLY.dump_json(reply))
    unfinished.rename(reply_file(file))


def as_reply(data: bytes) -> RankReply:
    """Read a reply as it was written."""
    return _REPLY.validate_json(data)
