"""Problems that two sets share, although they are not written alike.

Two transcriptions of one contest rarely agree to the letter: spaces, a drawing, a clause differ.
Among the 933 AIME problems of 1983-2024 no two are more similar than 0.7; the 18 that
`aime_eval_32` repeats are 0.94 or more, and its other 14 are below 0.5.
"""

import re
from collections.abc import Sequence

from mappa_core.core.records.episodes import Problem
from mappa_core.core.text import jaccard_similarity

SAME = 0.8
"""Jaccard similarity in [0, 1] from which two statements count as one problem."""

_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL | re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+|\d+")


def shared_problems(train: Sequence[Problem], held_out: Sequence[Problem]) -> set[Problem]:
    """The problems of both sets that the other one has too, by content or by similarity."""
    training = [(problem, _words(problem)) for problem in train]
    measuring = [(problem, _words(problem)) for problem in held_out]
    return {
        twin
        for one, words in training
        for other, others in measuring
        if one.id == other.id or (words and jaccard_similarity(words, others) >= SAME)
        for twin in (one, other)
    }


def _words(problem: Problem) -> frozenset[str]:
    return frozenset(_WORD.findall(_DRAWING.sub(" ", problem.statement.casefold())))
