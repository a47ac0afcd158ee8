"""Rows as columns: COPY's CSV through Arrow into NumPy, without a Python object per value."""

import io
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import csv
from sqlalchemy import Connection

from mappa_core.audit.frame import Factor, Floats, Frame, Ints, Mask

ArrowTable: TypeAlias = Any
"""A `pyarrow.Table`; the package has no types."""
_WORDS = pa.dictionary(pa.int32(), pa.string())
_CSV = csv.ConvertOptions(
    column_types={
        "action_id": pa.string(),
        "problem_id": _WORDS,
        "task_type": _WORDS,
        "agent": _WORDS,
        "tool_status": _WORDS,
        "unscored_reason": _WORDS,
        "scorer": _WORDS,
        "score": pa.float64(),
        "label": pa.float64(),
        "advantage": pa.float64(),
        "weight": pa.float64(),
        "iteration": pa.int64(),
        "turn_index": pa.int64(),
        "level": pa.int64(),
        "sampled_tokens": pa.int64(),
        "repeat_index": pa.int64(),
        "success": pa.string(),
        "trained": pa.string(),
        "at_random": pa.string(),
    },
    # An absent word is '', never a null.
    strings_can_be_null=False,
    null_values=[""],
)


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
        iteration=integers(table, "iteration"),
        turn=integers(table, "turn_index"),
        level=integers(table, "level"),
        tokens=integers(table, "sampled_tokens"),
        tool_used=_where(status, lambda name: name != ""),
        tool_failed=_where(status, lambda name: name not in ("", "ok")),
        success=_truth(factor(table, "success")),
        advantage=floats(table, "advantage"),
        weight=np.nan_to_num(floats(table, "weight")),
    )


def _truth(words: Factor) -> Floats:
    """(N,) 1 right, 0 wrong, NaN where there is no outcome."""
    return np.array([{"t": 1.0, "f": 0.0}.get(name, np.nan) for name in words.names])[words.codes]


def _where(words: Factor, matches: Callable[[str], bool]) -> Mask:
    """(N,) whether the row's word matches."""
    return np.array([matches(name) for name in words.names], dtype=bool)[words.codes]


def factor(table: ArrowTable, name: str) -> Factor:
    """A column as codes; an absent value is the name ''."""
    column = table[name].combine_chunks()
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    words: list[str] = column.dictionary.to_pylist()
    raw = _values(column.indices, np.dtype(np.int32)).astype(np.int64)
    present = np.unique(raw)
    order = sorted((int(code) for code in present), key=words.__getitem__)
    place = np.zeros(len(words), dtype=np.int64)
    place[order] = np.arange(len(order))
    return Factor(codes=place[raw], names=tuple(words[code] for code in order))


def floats(table: ArrowTable, name: str) -> Floats:
    """A column of numbers; NaN where there is none."""
    return _values(table[name].combine_chunks(), np.dtype(np.float64))


def integers(table: ArrowTable, name: str) -> Ints:
    """A column of whole numbers, none of them absent."""
    return _values(table[name].combine_chunks(), np.dtype(np.int64))


def _values(array: ArrowTable, dtype: np.dtype[Any]) -> np.ndarray:
    """An Arrow array's numbers, from its buffers; NaN where a number is absent.

    Arrow's own `to_numpy` imports pandas, which takes longer than a small audit.
    """
    valid, data = array.buffers()
    if data is None:
        return np.zeros(len(array), dtype)
    inside = slice(array.offset, array.offset + len(array))
    values = np.frombuffer(data, dtype)[inside]
    if not array.null_count:
        return values.copy()
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[inside]
    return np.where(bits == 1, values, np.nan)


def flags(table: ArrowTable, name: str) -> np.ndarray:
    """A column of Postgres's booleans."""
    return np.array([value == "t" for value in table[name].to_pylist()], dtype=bool)
