"""DSBench's modeling tasks from disk: JSON Lines, cleaned prompts, and one folder of CSV per task.

    <folder>/data_resplit/<task>/train.csv, test.csv      what the agents get
    <folder>/answers/<task>/test_answer.csv               what the grader compares with

The metric, the id column and the targets come from the cleaned prompts. They are right where a
search in the raw Kaggle text is wrong for a third of the tasks.
"""

import csv
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

import pandas as pd
from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.core.text import counted
from mappa_core.grading.figures import kind_of
from mappa_core.grading.metrics import METRICS
from mappa_core.grading.submissions import GradingKey, Invalid, check_labels, parse_key
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems.base import read_text, reading
from mappa_core.rollout.problems.tasks import (
    SAMPLE,
    TEST,
    TRAIN,
    Task,
    TaskProblems,
    as_csv,
    neutral,
    sample_submission,
    sha256,
    stratified,
)

Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


_log = logging.getLogger(__name__)


class _Metadata(BaseModel):
    task_id: str


class _Row(BaseModel):
    metadata: _Metadata


class CleanedPrompt(BaseModel):
    """One entry of the cleaned prompts."""

    cleaned_prompt: str
    metric: str
    task_type: Literal["classification", "regression", "extraction"]
    target_column: Names
    id_column: str


_PROMPTS = TypeAdapter(dict[str, CleanedPrompt])


def open_problems(config: ProblemsConfig, workspace_mib: int | None) -> TaskProblems:
    """The tasks that a configuration names.

    Raises:
        ConfigError: A file is missing or not in the layout, a task has no cleaned prompt, an
            unknown metric or labels that nothing can be measured with, its data takes over half the
            room, or the sets share data.
    """
    folder, prompts_file = config.folder, config.prompts_file
    if folder is None or prompts_file is None or not (config.train_files and config.held_out_files):
        raise ConfigError(
            "problems.source=dsbench needs problems.folder, problems.prompts_file, "
            "problems.train_files and problems.held_out_files"
        )
    prompts = _prompts(prompts_file)

    def task(name: str) -> Task:
        if workspace_mib is not None:
            _check_room(name, folder, workspace_mib)
        return _task(name, prompts, folder)

    train_names, held_out_names = _names(config.train_files), _names(config.held_out_files)
    tasks = _usable([*train_names, *held_out_names], task, skip=config.skip_unusable)
    train, held_out = (
        stratified([tasks[name] for name in names if name in tasks], size, config.seed)
        for names, size in (
            (train_names, config.train_size),
            (held_out_names, config.held_out_size),
        )
    )
    if not train or not held_out:
        raise ConfigError(
            f"no {'held-out' if train else 'training'} task is left to play: see problems.folder"
        )
    return TaskProblems(train, held_out)


def _usable(names: Sequence[str], task: Callable[[str], Task], *, skip: bool) -> Mapping[str, Task]:
    """The tasks that can be played and graded, by name; what is wrong with the others in one line.

    Raises:
        ConfigError: There are others, and they are not to be skipped.
    """
    tasks: dict[str, Task] = {}
    refused: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            tasks[name] = task(name)
        except ConfigError as error:
            refused[name] = str(error)
    if refused and not tasks:
        raise ConfigError(
            f"none of {counted(len(refused), 'task')} can be played, the first because "
            f"{next(iter(refused.values()))}: see problems.folder"
        )
    if refused:
        named = "; ".join(refused.values())
        if not skip:
            raise ConfigError(
                f"{named} ({counted(len(refused), 'task')} of {len(refused) + len(tasks)}; "
                "problems.skip_unusable=true plays the others)"
            )
        _say_once(f"{counted(len(refused), 'task')} left out: {named}")
    return tasks


@cache
def _say_once(line: str) -> None:
    """Warn, unless this process has: a start opens its problems to check them, and to play them."""
    _log.warning(line)


def _prompts(path: Path) -> Mapping[str, CleanedPrompt]:
    try:
        return _PROMPTS.validate_json(read_text(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"prompts file {path}, {where}: {first['msg'].lower()}") from None


def _names(paths: Sequence[Path]) -> list[str]:
    """Task names in order, each once."""
    return list(dict.fromkeys(name for path in paths for name in _names_of(path)))


def _names_of(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield _Row.model_validate_json(line).metadata.task_id
        except ValidationError:
            raise ConfigError(
                f"problem file {path}, line {number}: not JSON with metadata.task_id"
            ) from None


def _task(name: str, prompts: Mapping[str, CleanedPrompt], folder: Path) -> Task:
    prompt = prompts.get(name)
    if prompt is None:
        raise ConfigError(
            f"task {name} has no cleaned prompt: add one, or take its line out of the problem file"
        )
    if prompt.metric not in METRICS:
        raise ConfigError(f"task {name} is measured by {prompt.metric}, which is not known here")
    if kind_of(METRICS[prompt.metric]) != prompt.task_type:
        raise ConfigError(
            f"task {name} is called {prompt.task_type} and measured by {prompt.metric}, a "
            f"metric of {kind_of(METRICS[prompt.metric])}: mend its cleaned prompt"
        )
    data, answers = folder / "data_resplit" / name, folder / "answers" / name / "test_answer.csv"
    wanted = [prompt.id_column, *prompt.target_column]
    _check_header(data / TRAIN, prompt.target_column)
    _check_header(data / TEST, [prompt.id_column], never=prompt.target_column)
    _check_header(answers, wanted)
    labels = as_csv(_table(answers).reindex(columns=wanted))
    problem = _problem(name, prompt, labels)
    key = parse_key(problem.answer)
    try:
        check_labels(labels, key)
    except Invalid as objection:
        raise ConfigError(f"data file {answers} cannot be graded with: {objection}") from None
    return Task(
        problem=problem,
        files=lambda: _files(data, prompt, key),
        labels=lambda: labels,
        content=frozenset({name, sha256((data / TRAIN).read_bytes()), sha256(labels)}),
    )


def _check_room(name: str, folder: Path, workspace_mib: int) -> None:
    files = (folder / "data_resplit" / name / file for file in (TRAIN, TEST))
    data_mib = sum(file.stat().st_size for file in files if file.exists()) / 2**20
    # The other half is for the sample submission and for what the agents make of it all.
    if 2 * data_mib > workspace_mib:
        raise ConfigError(
            f"task {name} has {data_mib:.1f} MiB of data: set sandbox.workspace_mib to "
            f"{ceil(2 * data_mib)} or more, or take its line out of the problem file"
        )


def _problem(name: str, prompt: CleanedPrompt, labels: bytes) -> Problem:
    statement = f"{prompt.cleaned_prompt.strip()}\n\nCompetition: {name}"
    key = GradingKey(
        metric=prompt.metric,
        id_column=prompt.id_column,
        targets=prompt.target_column,
        labels_sha256=sha256(labels),
    )
    return Problem(
        id=ids.problem_id(statement),
        dataset="dsbench",
        task_type=prompt.task_type,
        level=0,
        statement=statement,
        answer=key.as_text(),
    )


def _files(data: Path, prompt: CleanedPrompt, key: GradingKey) -> Mapping[str, bytes]:
    filler = neutral(prompt.metric) or str(_table(data / TRAIN)[prompt.target_column[0]].iloc[0])
    return {
        TRAIN: (data / TRAIN).read_bytes(),
        TEST: (data / TEST).read_bytes(),
        SAMPLE: sample_submission(_table(data / TEST), key, filler),
    }


def _table(path: Path) -> pd.DataFrame:
    try:
        with reading(f"data file {path}"):
            return pd.read_csv(path, dtype=str, keep_default_na=False)
    except pd.errors.ParserError as error:
        raise ConfigError(f"data file {path} is no table: {' '.join(str(error).split())}") from None


def _check_header(path: Path, wanted: Sequence[str], never: Sequence[str] = ()) -> None:
    with reading(f"data file {path}"), path.open(encoding="utf-8-sig", newline="") as file:
        header = next(csv.reader(io.StringIO(file.readline())), [])
    missing = [name for name in wanted if name not in header]
    if missing:
        raise ConfigError(f"data file {path} has no column {missing[0]}: it has {header[:8]}")
    told = [name for name in never if name in header]
    if told:
        raise ConfigError(
            f"data file {path} has the column {told[0]}, which is what the agents are to predict: "
            "take it out"
        )
