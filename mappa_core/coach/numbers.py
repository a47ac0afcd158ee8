"""Points as coaches write them: "8.5", "8.5.", "10.0", "8/10", "**8**", and nothing looser.

A range ("7-8"), another scale ("80/100", "80%"), a decimal comma, an exponent or a number outside
[0, 10] is no score. A coach's number is read or it is not; it is never guessed.
"""

import math
import re

_DECORATION = " \t*_`\"'[]()"
_POINTS = re.compile(r"(?:[0-9]{1,2}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})")
_OUT_OF_TEN = re.compile(r"\s*(?:/|out of)\s*10(?:\.0+)?", re.IGNORECASE)


def points(text: str) -> float | None:
    """The points that all of `text` says, or None where it says anything else.

    Args:
        text: What stands after a label, or the content of a JSON string.
    """
    bare = text.strip(_DECORATION).removesuffix(".").strip(_DECORATION)
    number = _POINTS.match(bare)
    if number is None:
        return None
    rest = bare[number.end() :].strip(_DECORATION)
    if rest and not _OUT_OF_TEN.fullmatch(rest):
        return None
    return in_range(float(number[0]))


def in_range(value: float) -> float | None:
    """`value` where it lies in [0, 10], else None; NaN and infinities lie nowhere."""
    return value if math.isfinite(value) and 0.0 <= value <= 10.0 else None
