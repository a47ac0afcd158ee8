r"""Is an answer right? Decided by math-verify, never by a language model.

"1,000" = "1000.0" = "\frac{2000}{2}" = "1000 apples"
"""

import logging
import re

from math_verify import parse
from math_verify import verify as same_value

from mappa_core.domain.records import Outcome

LONGEST_ANSWER = 200
"""Characters; a longer answer to a problem with a short one is wrong without being parsed."""

_MONSTROUS = re.compile(r"(\^|\*\*)\s*\{?[^}]*(\^|\*\*)|(\^|\*\*)\s*\{?\s*-?\d{4,}|!")
"""Towers of powers, exponents of four digits or more, factorials: sympy would compute them."""

METHOD = "math-verify"

# math-verify bounds its time by signals, which work in the main thread only. Inputs are bounded
# here instead, and the warning it logs about that is not news.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def verify(answer: str | None, expected: str) -> Outcome:
    """Compare a team's answer with the expected one.

    Args:
        answer: What the team boxed, or None.
        expected: The right answer.

    Returns:
        The outcome; no answer, or one too monstrous to evaluate, is not a success.
    """
    return Outcome(success=_equal(answer, expected), answer=answer, method=METHOD)


def _equal(answer: str | None, expected: str) -> bool:
    if answer is None:
        return False
    if answer.strip() == expected.strip():
        return True
    if len(answer) > LONGEST_ANSWER or _MONSTROUS.search(answer):
        return False
    gold, given = (parse(f"${text}$", parsing_timeout=0) for text in (expected, answer))
    return bool(gold and given) and same_value(gold, given, timeout_seconds=0)
