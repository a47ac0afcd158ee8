r"""Is an answer right? Decided by math-verify, never by a language model.

"1,000" = "1000.0" = "\frac{2000}{2}" = "1000 books" = "\textbf{1000}" = "x = 1000"

What is counted is dropped behind a number where the right answer is a bare one: the parser takes
most nouns for products of unknowns. Words that change a number or leave it open are no nouns.

math-verify bounds its time by signals, which work in the main thread only. Here the inputs are
bounded instead: text that could take long to evaluate is compared letter by letter.
"""

import logging
import math
import re
from string import ascii_lowercase

from math_verify import parse
from math_verify import verify as same_value
from sympy import Basic

from mappa_core.core.records.episodes import Outcome

METHOD = "math-verify"

LONGEST_ANSWER = 100
"""Characters; a longer one is compared as text."""

DEEPEST_NESTING = 5
"""Brackets within brackets; the parser's time doubles with each."""

LARGEST_POWER = 1000
"""Product of all whole exponents of an answer: what powers of powers come to."""

_UNKNOWN_COMMAND = re.compile(
    r"\\(?!(?:[dtc]?frac|sqrt|pi|infty|pm|cdot|times|div|circ|degree|left|right|quad|boxed|cup|cap"
    r"|text(?:bf)?|math(?:rm|bf)|mbox|in|leq?|geq?|neq?)(?![A-Za-z]))[A-Za-z]"
)
"""Sums, binomials, trigonometry and the like, which sympy would compute, or try to."""

_POWER_SIGN = re.compile(r"\^|\*\*")
_POWER = re.compile(
    r"(?:\^|\*\*)\s*(?:\{\s*-?(\d{1,2})(?:/\d)?\s*\}|-?(\d{1,2})(?![\d.]))(?!\s*(?:\^|\*\*))"
)
_DEGREES = re.compile(r"\^\s*(?:\{\s*)?\\(?:circ|degree)(?:\s*\})?|°")
_ASSIGNED = re.compile(r"^\s*[A-Za-z]\s*=(?!=)")
_STYLED = re.compile(r"\s*\\(?:text(?:bf|it|rm)?|math(?:bf|it|rm)|mbox)\s*\{([^{}]*)\}\s*")
_GROUPED = re.compile(r"(?<![\d.,\\])\d{1,3}(?:\\[,!]\d{3})+(?![\d\\])")
"""Thousands apart by LaTeX's thin spaces."""

_BARE = re.compile(r"\s*[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?\s*")
_SEVERAL = re.compile(r"(?<![A-Za-z])(?:and|or)(?![A-Za-z])", re.IGNORECASE)
_COUNTED = re.compile(rf"(?P<number>{_BARE.pattern})(?<=\s)(?P<words>[A-Za-z][^\\]*)")
_NOUN = re.compile(
    r"(?:[A-Za-z]{3,}|[cmk]m|ft|yd|[km]g|[cm]l|oz|lb|hr|km/h|in|of)(?:\^[23]|\^\{[23]\})?[.,]?"
)
_NO_NOUN = re.compile(
    r"(?:zero|one|two|three|thir|four|for|five|fif|six|seven|eight?|nine?|ten|eleven|twel[vf]e?|twen"
    r"|hundred|thousand|[mbtr]+illion|dozen|half|halve|third|quarter)(?:teen|ty|i?e?th)?s?"
    r"|not|plus|minus|squared|cubed|factorial"
)
"""Words that say another number; a hedge needs one of these, a digit, or a word of two letters."""
_LONGEST_COUNTED = 4
"""Words behind a number; more are a sentence."""

# It warns whenever its timeouts are off; that is on purpose, and no news.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def verify(answer: str | None, expected: str) -> Outcome:
    """Compare a team's answer with the expected one; never raises, whatever a model wrote.

    No answer, or one that could take long to evaluate, is not a success.
    """
    return Outcome(success=_equal(answer, expected), answer=answer, method=METHOD)


def _equal(answer: str | None, expected: str) -> bool:
    if answer is None:
        return False
    if answer.strip() == expected.strip():
        return True
    wanted, given = _plain(expected), _plain(answer)
    if not (_is_quick(wanted) and _is_quick(given)):
        return False
    if not _BARE.fullmatch(wanted):
        return _same(wanted, given)
    return not _SEVERAL.search(given) and _same(wanted, _uncounted(given))


def _plain(text: str) -> str:
    """`text` without a style, degree marks, thin spaces, and the name it is given to (`x = 5`)."""
    styled = _STYLED.fullmatch(text)
    whole = _DEGREES.sub("", styled[1] if styled else text)
    return _ASSIGNED.sub("", _GROUPED.sub(lambda grouped: re.sub(r"\D", "", grouped[0]), whole))


def _uncounted(text: str) -> str:
    """The number of `41 books`; any other text as it is."""
    counted = _COUNTED.fullmatch(text)
    words = counted["words"].split() if counted else []
    nouns = len(words) <= _LONGEST_COUNTED and all(map(_is_noun, words))
    return counted["number"] if counted and nouns else text


def _is_noun(word: str) -> bool:
    """Whether `word` may be a noun or a unit: no number, and no product of unknowns like xyz."""
    plain = word.rstrip(".,").casefold()
    return bool(_NOUN.fullmatch(word)) and not (
        _NO_NOUN.fullmatch(plain) or plain in ascii_lowercase
    )


def _is_quick(text: str) -> bool:
    """Whether evaluating `text` is sure to be quick."""
    powers = _POWER.findall(text)
    return (
        len(text) <= LONGEST_ANSWER
        and "!" not in text
        and not _UNKNOWN_COMMAND.search(text)
        and len(powers) == len(_POWER_SIGN.findall(text))
        and math.prod(max(1, int(one or other)) for one, other in powers) <= LARGEST_POWER
        and _nesting(text) <= DEEPEST_NESTING
    )


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _same(expected: str, answer: str) -> bool:
    gold, given = (parse(f"${text}$", parsing_timeout=0) for text in (expected, answer))
    # Unknowns that the right answer does not have cannot vanish; simplifying them can take minutes.
    if not (gold and given) or not _unknowns(given) <= _unknowns(gold):
        return False
    return same_value(gold, given, timeout_seconds=0)


def _unknowns(parsed: list[object]) -> set[Basic]:
    return {name for value in parsed if isinstance(value, Basic) for name in value.free_symbols}
