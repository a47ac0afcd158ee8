"""A careful reader of a story's own words: which quantities, which operation, what it comes to.

    "Ana has 14 pens and buys 27 more. How many pens does Ana have now?"
        ─▶ Reading(quantities=(14, 27), operation="+", value=41)

It reads short stories with two to five whole numbers and common verbs, and says None wherever the
words do not settle the matter; it never guesses. It knows nothing of where a problem came from.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

_NUMBER = re.compile(r"(?<![\w.,^])\d{1,9}(?![\w^]|[.,]\d)")
_NOT_A_STORY = re.compile(r"[\\$^=%<>/*]|\d\.\d|[A-Za-z]\d|\d[A-Za-z]")
_LONGEST_STORY = 60
"""Words; longer texts are not read."""

_SHARED = re.compile(r"\b(equally|evenly)\b", re.IGNORECASE)
_PER = re.compile(r"\b(each|every|apiece)\b", re.IGNORECASE)
_COMPARED = re.compile(r"\bhow many (more|fewer)\b", re.IGNORECASE)
_GONE = re.compile(
    r"\b(gives? away|gave away|loses?|lost|sells?|sold|takes? out|took out|uses?|used|eats?|ate|"
    r"breaks?|broke|spends?|spent|removes?|throws? away|left|remain(s|ing)?)\b",
    re.IGNORECASE,
)
_COME = re.compile(
    r"\b(buys?|bought|finds?|found|gets?|got|picks?|adds?|receives?|earns?|"
    r"gives (?!away)\w+|more|altogether|together|in all|in total)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a story says."""

    quantities: tuple[int, ...]
    """In reading order."""
    operation: str
    """`+`, `-`, `*` or `/`; several steps are a run of signs, e.g. `+-`."""
    value: Fraction
    """What the words imply."""


def read_story(statement: str) -> Reading | None:
    """What the words of a story imply, or None where they do not settle it."""
    if _NOT_A_STORY.search(statement) or len(statement.split()) > _LONGEST_STORY:
        return None
    quantities = tuple(int(number[0]) for number in _NUMBER.finditer(statement))
    question = re.search(r"\bhow (many|much)\b[^?]*\?\s*$", statement, re.IGNORECASE)
    if question is None or not 2 <= len(quantities) <= 5 or _NUMBER.search(question[0]):
        # "... does she collect in 6 days?": a rate and a time, the one question with a number.
        return _rate(statement, quantities) if question else None
    if len(quantities) == 2:
        return _one_step(statement, quantities)
    return _several_steps(statement[: question.start()], quantities)


def _rate(statement: str, quantities: Sequence[int]) -> Reading | None:
    if len(quantities) != 2 or not re.match(r"\s*every (day|week|hour)\b", statement, re.I):
        return None
    return _reading(quantities, "*")


def _one_step(statement: str, quantities: Sequence[int]) -> Reading | None:
    if _SHARED.search(statement):
        return _reading(quantities, "/")
    if _PER.search(statement):
        return _reading(quantities, "*")
    if _COMPARED.search(statement) or _GONE.search(statement):
        return _reading(quantities, "-")
    return _reading(quantities, "+") if _COME.search(statement) else None


def _several_steps(story: str, quantities: Sequence[int]) -> Reading | None:
    """A first quantity, then one change for each further one, in the words just before it."""
    if _SHARED.search(story) or _PER.search(story):
        return None
    ends = [number.end() for number in _NUMBER.finditer(story)]
    if len(ends) != len(quantities):
        return None
    signs = [_sign(story[start:end]) for start, end in itertools.pairwise(ends)]
    return None if None in signs else _reading(quantities, "".join(sign or "" for sign in signs))


def _sign(words: str) -> str | None:
    gone, come = _last(_GONE, words), _last(_COME, words)
    if gone == come:
        return None
    return "-" if gone > come else "+"


def _last(cue: re.Pattern[str], words: str) -> int:
    return max((match.start() for match in cue.finditer(words)), default=-1)


def _reading(quantities: Sequence[int], signs: str) -> Reading | None:
    value = Fraction(quantities[0])
    for sign, quantity in zip(signs, quantities[1:], strict=True):
        if sign == "/" and quantity == 0:
            return None
        value = {
            "+": value.__add__,
            "-": value.__sub__,
            "*": value.__mul__,
            "/": value.__truediv__,
        }[sign](quantity)
    return Reading(quantities=tuple(quantities), operation=signs, value=value)
