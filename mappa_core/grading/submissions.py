"""Scoring a submission in a trusted process: from CSV alone, by id, or the exact reason why not.

    bytes ─▶ rows by id ─▶ every target of every hidden row ─▶ Outcome

Nothing a program wrote is ever unpickled, executed or believed: not its row order, not its exit
code, not a score it printed.
"""

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from mappa_core.core.records.episodes import Outcome
from mappa_core.grading.figures import figures
from mappa_core.grading.metrics import METRICS, Metric, Table
from mappa_core.grading.skill import constant_value, skill

METHOD = "submission"
LARGEST_BYTES = 256 * 2**20
_WHOLE = re.compile(r"([-+]?\d+)\.0*")
Cells: TypeAlias = Mapping[str, Sequence[str]]
"""A table's columns by name, as text."""
_NAMED, _NAME = 3, 40
"""Ids that a reason quotes, and characters of whatever else it quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingKey:
    """How a task is graded; stored as the problem's answer, and without the labels themselves."""

    metric: str
    id_column: str
    targets: tuple[str, ...]
    labels_sha256: str

    def as_text(self) -> str:
        """For `Problem.answer`."""
        return json.dumps(asdict(self), sort_keys=True)


_KEY = TypeAdapter(GradingKey)


def parse_key(text: str) -> GradingKey:
    """The key that `as_text` wrote.

    Raises:
        ValueError: It did not.
    """
    return _KEY.validate_json(text)


class Invalid(Exception):
    """Why a submission cannot be measured; one sentence for people and agents."""


def grade(submission: bytes | None, labels: bytes, key: GradingKey) -> Outcome:
    """Measure a submission, or None, against the hidden `labels` that `check_labels` has seen.

    What cannot be measured is charged the constant prediction's value.
    """
    metric = METRICS[key.metric]
    ids, truth = _labels(labels, key, metric)
    constant = constant_value(metric, truth)
    predicted, value, reason = None, None, None
    try:
        predicted = _predicted(submission, key, metric, ids)
        value = _measured(metric, truth, predicted)
    except Invalid as objection:
        predicted, reason = None, str(objection)
    return Outcome(
        success=value is not None and metric.better(value, constant),
        answer=None if value is None else f"{metric.name} {value:.6g}",
        method=METHOD,
        metric=metric.name,
        value=value,
        charged=constant if value is None else value,
        skill=skill(metric, value, constant),
        detail=reason,
        figures=figures(metric, truth, predicted),
    )


def _predicted(
    submission: bytes | None, key: GradingKey, metric: Metric, ids: Sequence[str]
) -> Table:
    """Shape (N, K): what the submission says of the hidden rows, in the order of `ids`."""
    if submission is None:
        raise Invalid("there is no submission.csv")
    cells = _in_order(_read(submission, key, len(ids)), key, ids)
    return np.column_stack([_column(cells[name], metric, name) for name in key.targets])


def _measured(metric: Metric, truth: Table, predicted: Table) -> float:
    # What overflows is no finite value, which is said below.
    with np.errstate(all="ignore"):
        value = float(metric.measure(truth, predicted))
    if not np.isfinite(value):
        raise Invalid(f"{metric.name} is not defined for these predictions")
    return value


def check_labels(labels: bytes, key: GradingKey) -> None:
    """See that submissions can be measured against the CSV `labels`, as `grade` takes for granted.

    Raises:
        Invalid: Why they cannot.
    """
    metric = METRICS[key.metric]
    ids, truth = _labels(labels, key, metric)
    if not ids:
        raise Invalid("it has no rows")
    _refuse(_repeated(ids), "more than once")
    if metric.wants == "probabilities" and len(key.targets) > 1:
        return
    for name, column in zip(key.targets, truth.T, strict=True):
        if len(set(column)) < 2:
            raise Invalid(f"{name} is the same in every row, which any constant gets right")


def _labels(labels: bytes, key: GradingKey, metric: Metric) -> tuple[list[str], Table]:
    cells = _read(labels, key)
    ids = [_canonical(text) for text in cells[key.id_column]]
    labelled = metric.wants == "scores" or (
        metric.wants == "probabilities" and len(key.targets) == 1
    )
    wants = "labels" if labelled else metric.wants
    true = [_column(cells[name], replace(metric, wants=wants), name) for name in key.targets]
    return ids, np.column_stack(true)


def _read(data: bytes, key: GradingKey, task_rows: int | None = None) -> Cells:
    """The columns of a CSV that has those of the task and no other.

    A file of more than twice as many rows as the task has is not read to its end.
    """
    if len(data) > LARGEST_BYTES:
        raise Invalid(f"it has {len(data)} bytes; at most {LARGEST_BYTES} are read")
    try:
        rows = (row for row in csv.reader(io.StringIO(data.decode("utf-8-sig"))) if row)
        header = next(rows, [])
        _check_header(header, [key.id_column, *key.targets])
        return _columns(header, rows, task_rows)
    except UnicodeDecodeError:
        raise Invalid("it is not UTF-8 text") from None
    except csv.Error as error:
        raise Invalid(f"it is not a CSV table: {error}") from None


def _check_header(header: Sequence[str], wanted: Sequence[str]) -> None:
    if not header:
        raise Invalid("it is empty")
    if len(set(header)) != len(header):
        raise Invalid("a column name occurs twice")
    if set(wanted) != set(header):
        named = ", ".join(name[:_NAME] for name in header[:20])
        raise Invalid(f"its columns are {named}, not {', '.join(wanted)}")


def _columns(header: Sequence[str], rows: Iterable[Sequence[str]], task_rows: int | None) -> Cells:
    columns: dict[str, list[str]] = {name: [] for name in header}
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise Invalid(f"row {number} has {len(row)} cells where the header has {len(header)}")
        if task_rows is not None and number > 2 * task_rows + 1:
            raise Invalid(f"it has more than {2 * task_rows} rows where the task has {task_rows}")
        for name, cell in zip(header, row, strict=True):
            columns[name].append(cell)
    return columns


def _in_order(cells: Cells, key: GradingKey, ids: Sequence[str]) -> Cells:
    """The targets' cells in the order of `ids`."""
    found = [_canonical(text) for text in cells[key.id_column]]
    rows = {one: row for row, one in enumerate(found)}
    _refuse(_repeated(found), "more than once")
    _refuse([one for one in ids if one not in rows], "not at all")
    expected = set(ids)
    _refuse([one for one in found if one not in expected], "though the task has no such row")
    return {name: [cells[name][rows[one]] for one in ids] for name in key.targets}


def _repeated(ids: Sequence[str]) -> list[str]:
    return [one for one, count in Counter(ids).items() if count > 1]


def _refuse(ids: Sequence[str], how: str) -> None:
    if ids:
        named = ", ".join(repr(one[:_NAME]) for one in ids[:_NAMED])
        more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
        raise Invalid(f"it has id {named}{more} {how}")


def _canonical(text: str) -> str:
    """An id or a label as it is compared: 7.0, as data frames like to write it, is 7."""
    stripped = text.strip()
    whole = _WHOLE.fullmatch(stripped)
    return whole[1] if whole else stripped


def _column(cells: Sequence[str], metric: Metric, name: str) -> NDArray[Any]:
    """The cells as the metric wants them."""
    if metric.wants == "text":
        return _texts(cells)
    empty = sum(not cell.strip() for cell in cells)
    if empty:
        raise Invalid(f"{empty} cells of {name} are empty")
    if metric.wants in ("labels", "ranking"):
        return _texts([_canonical(cell) for cell in cells])
    return _numbers(cells, metric, name)


def _texts(cells: Sequence[str]) -> NDArray[Any]:
    """As objects: in an array of texts every cell takes as much room as the longest."""
    return np.array(cells, dtype=object)


def _numbers(cells: Sequence[str], metric: Metric, name: str) -> NDArray[np.float64]:
    numbers = np.array([_number(cell, name) for cell in cells], dtype=np.float64)
    if metric.wants == "probabilities" and not ((numbers >= 0) & (numbers <= 1)).all():
        raise Invalid(f"{name} holds probabilities outside 0 to 1")
    if numbers.min(initial=0.0) < metric.lowest:
        raise Invalid(f"{name} holds {numbers.min():g}, and {metric.name} takes none below 0")
    return numbers


def _number(cell: str, name: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Invalid(f"{name} holds {cell.strip()[:_NAME]!r}, not a number")
    return number
