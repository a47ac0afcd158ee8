"""Text and numbers as Python has them, in columns as Postgres has them.

Postgres stores neither NUL nor lone surrogates, and model-written text holds both. They are
written as `␛` and four hexadecimal digits (`␛0000`, `␛DC80`), and `␛` itself as `␛241B`, so every
string comes back as it went in and the stored form stays readable in SQL.
"""

import json
import math
import re
from array import array
from collections.abc import Callable, Sequence
from typing import cast

from sqlalchemy import REAL, Dialect, Text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.types import TypeDecorator

from mappa_core.core.records.tools import Json

_UNSTORABLE = re.compile("[\x00\ud800-\udfff␛]")
_ESCAPED = re.compile("␛([0-9A-F]{4})")


def escape(text: str) -> str:
    """The storable form of `text`."""
    if text.isascii() and "\0" not in text:
        return text
    return _UNSTORABLE.sub(lambda found: f"␛{ord(found[0]):04X}", text)


def unescape(stored: str) -> str:
    """The text that `escape` made `stored` of."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), stored)


def escape_json(value: Json) -> Json:
    """`value` with every string and key escaped, and NaN and infinities as their names.

    JSON has no such numbers; `float` makes them of their names again.
    """
    return _each_text(value, escape)


def unescape_json(value: Json) -> Json:
    """`value` with every string and key as it was before `escape_json`."""
    return _each_text(value, unescape)


def _each_text(value: Json, convert: Callable[[str], str]) -> Json:
    match value:
        case str():
            return convert(value)
        case list():
            return [_each_text(item, convert) for item in value]
        case dict():
            return {convert(key): _each_text(item, convert) for key, item in value.items()}
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value


def dump_json(value: Json) -> str:
    """The JSON text of `escape_json(value)`, made in one pass where nothing is to be escaped."""
    plain = json.dumps(value)
    # What is not plain ASCII is written as \u..., and a number JSON lacks as its name.
    if "\\u" in plain or "NaN" in plain or "Infinity" in plain:
        return json.dumps(escape_json(value))
    return plain


class AnyText(TypeDecorator[str]):
    """A text column for every Python string."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Escape on the way in."""
        return None if value is None else escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """Unescape on the way out."""
        return None if value is None else unescape(value)


class AnyJson(TypeDecorator[Json]):
    """A JSONB column for every Python string in it."""

    impl = JSONB
    cache_ok = True

    def process_bind_param(self, value: Json, dialect: Dialect) -> Json:  # noqa: ARG002
        """Escape on the way in."""
        return escape_json(value)

    def process_result_value(self, value: object, dialect: Dialect) -> Json:  # noqa: ARG002
        """Unescape on the way out."""
        return unescape_json(cast("Json", value))


class Float32s(TypeDecorator[Sequence[float]]):
    """A column of float32 arrays; what the engines compute is float32, more digits are noise."""

    impl = ARRAY(REAL)
    cache_ok = True

    def process_result_value(
        self,
        value: Sequence[float] | None,
        dialect: Dialect,  # noqa: ARG002
    ) -> Sequence[float] | None:
        """Postgres prints the shortest decimal of a float32; this is the number it stands for."""
        return None if value is None else array("f", value)
