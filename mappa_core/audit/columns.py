"""Rows as columns: COPY's CSV through Arrow into NumPy, without a Python object per value."""

import io
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import csv
from sqlalchemy import Connection

from mappa_core.audit.frame import Experiment, Factor, Floats, Frame, Ints, Mask

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`; the package has no types."""
_WORDS = (
    "problem_id",
    "task_type",
    "agent",
    "tool_status",
    "unscored_reason",
    "left_out",
    "scorer",
    "change",
    "put",
)
_FLOATS = ("score", "label", "advantage", "weight", "stored")
_INTEGERS = ("episode", "iteration", "turn_index", "level", "sampled_tokens", "repeat_index")
_CSV = csv.ConvertOptions(
    column_types={
        "action_id": pa.string(),
        **dict.fromkeys(_WORDS, pa.dictionary(pa.int32(), pa.string())),
        **dict.fromkeys(_FLOATS, pa.float64()),
        **dict.fromkeys(_INTEGERS, pa.int64()),
        **dict.fromkeys(("success", "trained", "at_random", "unseen"), pa.bool_()),
    },
    true_values=["t"],
    false_values=["f"],
    # An absent word is '', never a null.
    strings_can_be_null=False,
    null_values=[""],
)
# From a buffer: to read a Python value, as for `to_numpy`, Arrow imports pandas, which takes longer
# than a small audit.
_NAN = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(np.array([np.nan]))])[0]


def copied(connection: Connection, query: str) -> ArrowTable:
    """The rows of a query as columns."""
    received = io.BytesIO()
    cursor = connection.connection.cursor()
    with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)") as rows:  # pyright: ignore[reportAttributeAccessIssue]
        for block in rows:
            received.write(block)
    received.seek(0)
    return csv.read_csv(received, convert_options=_CSV)


def frame(table: ArrowTable) -> Frame:
    """The audit's frame, (N,) each, from the columns that the reader copies."""
    status, reason = factor(table, "tool_status"), factor(table, "unscored_reason")
    return Frame(
        score=floats(table, "score"),
        unparsed=_where(reason, lambda name: name == "unparsable"),
        task_type=factor(table, "task_type"),
        agent=factor(table, "agent"),
        problem=factor(table, "problem_id"),
        episode=integers(table, "episode"),
        iteration=integers(table, "iteration"),
        turn=integers(table, "turn_index"),
        level=integers(table, "level"),
        tokens=integers(table, "sampled_tokens"),
        tool_used=_where(status, lambda name: name != ""),
        tool_failed=_where(status, lambda name: name not in ("", "ok")),
        success=floats(table, "success"),
        advantage=floats(table, "advantage"),
        weight=np.nan_to_num(floats(table, "weight")),
        cut_off=_where(factor(table, "left_out"), lambda name: name == "truncated"),
    )


def experiment(table: ArrowTable) -> Experiment:
    """The scorings of an experiment, (M,) each, from the columns that the reader copies."""
    return Experiment(
        action=factor(table, "action_id"),
        problem=factor(table, "problem_id"),
        task_type=factor(table, "task_type"),
        agent=factor(table, "agent"),
        iteration=floats(table, "iteration").astype(np.int64),
        success=floats(table, "success"),
        change=factor(table, "change"),
        put=factor(table, "put"),
        unseen=floats(table, "unseen") == 1,
        score=floats(table, "score"),
        stored=floats(table, "stored"),
    )


def _where(words: Factor, matches: Callable[[str], bool]) -> Mask:
    """(N,) whether the row's word matches."""
    return np.array([matches(name) for name in words.names], dtype=bool)[words.codes]


def factor(table: ArrowTable, name: str) -> Factor:
    """A column as codes; an absent value is the name ''."""
    column = table[name].combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    words = Factor.of(column.dictionary.to_pylist())
    return Factor(
        codes=words.codes[np.from_dlpack(column.indices).astype(np.int64)], names=words.names
    )


def floats(table: ArrowTable, name: str) -> Floats:
    """A column of numbers, or of 1 for true and 0 for false; NaN where there is none."""
    column = table[name].cast(pa.float64()).fill_null(_NAN).combine_chunks()
    return np.from_dlpack(column).astype(np.float64)


def integers(table: ArrowTable, name: str) -> Ints:
    """A column of whole numbers or of truths, none of them absent."""
    return np.from_dlpack(table[name].cast(pa.int64()).combine_chunks()).astype(np.int64)
