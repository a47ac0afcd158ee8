"""Records as rows and rows as records: a column holds the field of its name.

How a value is written follows from the field's type alone, so a new field that has a column needs
nothing here. What is named otherwise, or computed, the repositories name where they write or read
it. A round trip changes nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from sqlalchemy import Result, RowMapping, Table

Values: TypeAlias = dict[str, Any]
"""Column names and what goes in; it never leaves the store."""
Row: TypeAlias = RowMapping | Mapping[str, Any]
"""Column names and what came out."""
Convert: TypeAlias = Callable[[Any], Any]
T = TypeVar("T")


def row_of(table: Table, *records: object, **named: object) -> Values:
    """The row of `table` that holds these records' fields.

    Args:
        table: Columns that neither a record nor `named` has keep their default.
        records: Instances of dataclasses.
        named: Columns that are no field, or not the field of their name.
    """
    row: Values = {}
    for record in records:
        for name, convert in _written(table, type(record)):
            if name not in named:
                row[name] = converted(convert, getattr(record, name))
    return row | named


def record_of(kind: type[T], row: Row, **named: object) -> T:
    """The record of one row.

    Args:
        kind: A dataclass.
        row: Columns that are no field of it are left out.
        named: Fields that are no column, or not the column of their name.
    """
    values = dict(named)
    for name, convert in _read(kind).items():
        if name not in named and name in row:
            values[name] = converted(convert, row[name])
    return kind(**values)


def records_of(kind: type[T], rows: Result[Any]) -> tuple[T, ...]:
    """The record of each row, whose columns are found once: for many rows.

    Args:
        kind: A dataclass.
        rows: Columns that are no field of it are left out.
    """
    places = {name: place for place, name in enumerate(rows.keys())}
    fields = [(name, places[name], read) for name, read in _read(kind).items() if name in places]
    return tuple(
        kind(**{name: converted(read, row[place]) for name, place, read in fields}) for row in rows
    )


@cache
def _written(table: Table, kind: type) -> tuple[tuple[str, Convert | None], ...]:
    types = get_type_hints(kind)
    return tuple((name, _writer(types[name])) for name in types if name in table.c)


@cache
def _read(kind: type) -> Mapping[str, Convert | None]:
    return {name: _reader(hint) for name, hint in get_type_hints(kind).items()}


def _writer(hint: object) -> Convert | None:
    """How a field of this type becomes a column or JSON; None where it stays as it is."""
    origin, arguments = _parts(hint)
    if origin is Mapping:
        return dict
    if origin is tuple:
        item = _writer(arguments[0])
        return list if item is None else lambda values: [item(value) for value in values]
    if is_dataclass(origin):
        inner = [(name, _writer(kind)) for name, kind in get_type_hints(origin).items()]
        return lambda record: {
            name: converted(write, getattr(record, name)) for name, write in inner
        }
    return None


def _reader(hint: object) -> Convert | None:
    """How a column or JSON becomes a field of this type; None where it stays as it is."""
    origin, arguments = _parts(hint)
    if origin is Mapping and arguments[1] is float:
        # A whole number comes back from JSON as an int, and NaN as its name.
        return lambda values: {name: float(value) for name, value in values.items()}
    if origin is tuple:
        item = _reader(arguments[0])
        if item is None or arguments[0] is float:
            return tuple
        return lambda values: tuple(item(value) for value in values)
    if is_dataclass(origin):
        return lambda row: record_of(origin, row)
    if origin is float or (isinstance(origin, type) and issubclass(origin, Enum)):
        return origin
    return None


def converted(convert: Convert | None, value: object) -> object:
    """The value as `convert` makes it; None stays None."""
    return value if value is None or convert is None else convert(value)


def _parts(hint: object) -> tuple[Any, tuple[Any, ...]]:
    """A type without its `None`, as what it is and of what."""
    if get_origin(hint) in (Union, UnionType):
        some = [kind for kind in get_args(hint) if kind is not NoneType]
        return _parts(some[0]) if len(some) == 1 else (None, ())
    return get_origin(hint) or hint, get_args(hint)
