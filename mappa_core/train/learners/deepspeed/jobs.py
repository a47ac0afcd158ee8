"""What crosses to the ranks and back: two files, whose paths are all that the launcher is told.

They lie in a folder of their own. Whoever takes up an update again removes the folders of earlier
attempts, and ranks whose job is gone write no checkpoint: those of a process that was killed may
compute on, on nodes that do not hear of it.
"""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.checkpoint_learner import Learnt, Lesson


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work for the ranks: a lesson, or else the log-probabilities of actions."""

    base_model: str
    policy: PolicyVersion
    learner: LearnerConfig
    lesson: Lesson | None = None
    actions: tuple[ScoredAction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the first rank found."""

    learnt: Learnt | None = None
    logprobs: tuple[tuple[float, ...], ...] = ()
    error: str | None = None
    """One line, where something outside failed."""
    disk_full: bool = False


_JOB, _ANSWER = TypeAdapter(Job), TypeAdapter(Answer)


@contextmanager
def handed_out(directory: Path, job: Job) -> Generator[Path]:
    """The job's file for the ranks to read, in a folder of `directory` that goes with the block."""
    prefix = ".job-"
    if job.lesson is not None:
        prefix = f".job-{job.policy.id}-"
        for earlier in directory.glob(f"{prefix}*"):
            shutil.rmtree(earlier, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory) as folder:
        file = Path(folder) / "job.json"
        file.write_bytes(_JOB.dump_json(job))
        yield file


def wanted(file: Path) -> bool:
    """Whether a job is to be finished: nobody has ended it or taken up the same update since."""
    return file.exists()


def read_job(file: Path) -> Job:
    """The job as it was written."""
    return _JOB.validate_json(file.read_bytes())


def answer_of(file: Path) -> Path:
    """Where the answer to a job goes."""
    return file.with_suffix(".answer.json")


def write_answer(file: Path, answer: Answer) -> None:
    """Write the answer to the job in `file`, whole or not at all."""
    beside = file.with_suffix(".writing")
    beside.write_bytes(_ANSWER.dump_json(answer))
    beside.rename(answer_of(file))


def read_answer(file: Path) -> Answer | None:
    """The answer to the job in `file`; None where the ranks ended without one."""
    answer = answer_of(file)
    return _ANSWER.validate_json(answer.read_bytes()) if answer.exists() else None
