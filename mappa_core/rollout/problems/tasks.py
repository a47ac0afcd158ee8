"""Prediction tasks: what the agents get as files, and the labels that they never see.

table ─▶ train.csv, test.csv, sample_submission.csv      into the workspace
      └▶ labels                                          stays with the grader
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.grading.metrics import METRICS
from mappa_core.grading.submissions import GradingKey
from mappa_core.rollout.problems.base import FixedProblems
from mappa_core.rollout.problems.drawing import in_turn

TRAIN, TEST, SAMPLE = "train.csv", "test.csv", "sample_submission.csv"

SHARED = 0.05
"""Share of common digests above which two tasks are the same data; single rows of two rounded
columns coincide by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A problem with its data; data is read when asked for, because it may be large."""

    problem: Problem
    files: Callable[[], Mapping[str, bytes]]
    """What the agents get, by name."""
    labels: Callable[[], bytes]
    """CSV with the id column and all targets of the rows of test.csv."""
    content: frozenset[str]
    """Digests (of rows, or of whole files) that another task shares only if it shares data."""


class TaskProblems(FixedProblems):
    """Tasks as a `TaskSource`."""

    def __init__(self, train: Sequence[Task], held_out: Sequence[Task]) -> None:
        """Check that the sets are disjoint.

        Raises:
            ConfigError: A held-out task shares data with a training task, whatever their names.
        """
        for one in train:
            for other in held_out:
                if _shares_data(one, other):
                    raise ConfigError(
                        f"held-out task {_name(other)} shares data with training task "
                        f"{_name(one)}: leave one of them out"
                    )
        super().__init__([task.problem for task in train], [task.problem for task in held_out])
        self._by_id = {task.problem.id: task for task in (*train, *held_out)}

    def files(self, problem: Problem) -> Mapping[str, bytes]:
        """What the agents find in their workspace."""
        return self._task(problem).files()

    def labels(self, problem: Problem) -> bytes:
        """What the grader compares with."""
        return self._task(problem).labels()

    def _task(self, problem: Problem) -> Task:
        if problem.id not in self._by_id:
            raise ConfigError(
                f"the task {problem.statement[:60]!r} is not among this run's problems: resume "
                "with the problem files it was started with"
            )
        return self._by_id[problem.id]


def _shares_data(one: Task, other: Task) -> bool:
    smaller = min(len(one.content), len(other.content))
    return len(one.content & other.content) > SHARED * smaller


def _name(task: Task) -> str:
    return f"{task.problem.dataset} ({task.problem.statement[:40].strip()!r})"


def stratified(tasks: Sequence[Task], size: int, seed: int) -> list[Task]:
    """At most `size` tasks, in turn over the task types, each type in a seeded order."""
    return in_turn(tasks, size, seed, lambda task: task.problem.task_type)


def as_csv(frame: pd.DataFrame) -> bytes:
    """The table as the agents' files have it."""
    return frame.to_csv(index=False).encode()


def sample_submission(test: pd.DataFrame, key: GradingKey, filler: str) -> bytes:
    """A submission in the right form that says nothing."""
    return as_csv(
        test.reindex(columns=[key.id_column]).assign(**dict.fromkeys(key.targets, filler))
    )


def neutral(metric: str) -> str | None:
    """What a sample submission says for `metric`; None where it takes a label of the task."""
    wants = METRICS[metric].wants
    return {"numbers": "0", "scores": "0.5", "probabilities": "0.5", "text": "-"}.get(wants)


def sha256(data: bytes) -> str:
    """The digest of `data`, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
