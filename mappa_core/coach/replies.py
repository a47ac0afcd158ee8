"""What a coach's reply says: a judgement, or why it says none.

    reply ─▶ unquoted lines ─┬─▶ JSON objects with a score  ─┐ signed ones if any, else the
                             └─▶ lines `Score: n`            ┴─▶ others ─▶ CoachScore | Unreadable

`read_reply` is total: any text at all gives one or the other. A score is signed when it names the
case's marker, which the agents' text cannot contain. An unsigned one counts only where the same
words do not stand in the evidence; quotations and code fences never count; an object that names
another case spoils the reply. Two different scores are no score.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import cast

from mappa_core.core.records.scores import CoachScore, CriterionMark
from mappa_core.core.records.tools import Json

LONGEST_REPLY = 100_000
"""Characters; what is longer is a model that runs away, not a judgement."""

CRITERIA = 6
"""Marks in a bounded reply, at most."""
CASE_CHARACTERS = 16
"""Of a marker."""

REPLY_SCHEMA: Mapping[str, Json] = {
    "type": "object",
    "properties": {
        "case": {"type": "string"},
        "rationale": {"type": "string"},
        "criteria": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "mark": {"type": "number"}},
                "required": ["name", "mark"],
            },
        },
        "blamed": {"type": "string"},
        "correction": {"type": "string"},
        "score": {"type": "number"},
    },
    "required": ["case", "rationale", "score"],
}
"""The structured reply as JSON Schema, in the subset that every provider takes."""

MARKS: tuple[Json, ...] = tuple(half / 2 if half % 2 else half // 2 for half in range(21))
"""0, 0.5, 1 ... 10: the scores that a grammar allows."""
_RIGHT = MARKS.index(5)
"""The lowest mark of work that a brief reply calls right."""


def bounded_schema(characters: int | None, *, tokens: int, correction: bool) -> Mapping[str, Json]:
    """Give the schema of a reply that ends by itself, for a server that holds replies to it.

    A brief one says "right" or "wrong" between rationale and score, which agrees with it: a small
    model calls work incorrect and gives it a 10, where only a number may follow.

    Args:
        characters: Of the rationale, at most, in a brief reply, which has no marks by criterion;
            None for the whole reply, within `tokens`.
        tokens: Of a reply, at most.
        correction: Whether to ask what should have been done instead.
    """
    score: Json = {"enum": list(MARKS)}
    short = _string(tokens // 32)
    # A score without a rationale is none.
    long = _string(characters or tokens // 5) | {"minLength": 1}
    wished: dict[str, Json] = {"correction": long} if correction else {}
    if characters is not None:
        said: dict[str, Json] = {"rationale": long, **wished}
        forms: list[Json] = [
            _object({**said, "verdict": {"enum": [verdict]}, "score": {"enum": list(marks)}})
            for verdict, marks in (("right", MARKS[_RIGHT:]), ("wrong", MARKS[:_RIGHT]))
        ]
        return {"anyOf": forms}
    mark = _object({"name": short, "mark": score})
    return _object(
        {
            "case": _string(CASE_CHARACTERS),
            "rationale": long,
            "criteria": {"type": "array", "items": mark, "maxItems": CRITERIA},
            "blamed": short,
            **wished,
            "score": score,
        }
    )


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _string(characters: int) -> dict[str, Json]:
    return {"type": "string", "maxLength": characters}


_SCORE_LINE = re.compile(
    r"[\s#*_-]*(?:(?:final|overall|process)[ _])?(?:score|rating)(?P<marker>\s+[0-9a-f]{8})?"
    r"[*_\s]*[:=](?P<points>.*)",
    re.IGNORECASE,
)
_DECORATION = " \t*_`\"'[]()"
_POINTS = re.compile(r"(?:[0-9]{1,2}(?:\.[0-9]{1,6})?|\.[0-9]{1,6})")
_OUT_OF_TEN = re.compile(r"\s*(?:/|out of)\s*10(?:\.0+)?", re.IGNORECASE)
_LINE_WITH_BRACE = re.compile(r"^[ \t]*\{", re.MULTILINE)
_MARKUP = re.compile(r"[\s*_`>#-]+")
_JSON_FENCE = "```json"
_FENCES = ("```", "~~~")
_EVIDENCE, _EVIDENCE_END = "<<<", "<<<END"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """Why a reply is no judgement, in words for the coach and for people."""

    why: str


class _Spoilt(Exception):
    """The reply must not be read; `str(error)` says why."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One score found in a reply."""

    signed: bool
    value: float | None
    rationale: str | None
    source: Mapping[str, Json]
    """The JSON object, empty for a line of text."""


def read_reply(raw: str, *, marker: str, evidence: Sequence[str]) -> CoachScore | Unreadable:
    """Read the score in a reply that carries the case's `marker`; never raises.

    `evidence` is the agents' text the coach was shown; what stands there is no judgement.
    """
    if not raw.strip():
        return Unreadable(why="the reply is empty")
    if len(raw) > LONGEST_REPLY:
        return Unreadable(why=f"the reply has {len(raw)} characters")

    @cache
    def shown() -> str:
        # Only an unsigned score is compared with it, and it may be long.
        return _squeezed("\n".join(evidence))

    try:
        objects, text = _split(_unquoted(raw))
        scores = _from_objects(objects, marker, shown, raw)
        return _judged([*scores, *_from_text(text, marker, shown)])
    except _Spoilt as spoilt:
        return Unreadable(why=str(spoilt))


def _judged(found: Sequence[_Candidate]) -> CoachScore:
    counted = [one for one in found if one.signed] or found
    if not counted:
        raise _Spoilt("there is no score outside quotations of the evidence")
    if any(one.value is None for one in counted):
        raise _Spoilt("the score is no number in [0, 10]")
    if len({one.value for one in counted}) > 1:
        raise _Spoilt("there are several different scores")
    chosen = counted[0]
    if chosen.value is None or not chosen.rationale:
        raise _Spoilt("there is a score but no rationale")
    return CoachScore(
        value=chosen.value,
        rationale=chosen.rationale,
        criteria=tuple(_criteria(chosen.source.get("criteria"))),
        blamed=_text_of(chosen.source.get("blamed")),
        correction=_text_of(chosen.source.get("correction")),
    )


def _from_objects(
    objects: Sequence[tuple[Mapping[str, Json], str]],
    marker: str,
    shown: Callable[[], str],
    reply: str,
) -> Iterator[_Candidate]:
    for found, written in objects:
        case = found.get("case")
        if "score" not in found:
            continue
        if case is not None and case != marker:
            raise _Spoilt("the reply names another case than the one asked about")
        again = json.dumps(found, ensure_ascii=False)
        if case == marker or not _is_quoted((reply, written, again), shown()):
            yield _Candidate(
                case == marker,
                _points_of(found["score"]),
                _text_of(found.get("rationale")),
                found,
            )


def _is_quoted(forms: Sequence[str], shown: str) -> bool:
    return any(_squeezed(form) in shown for form in forms)


def _from_text(text: str, marker: str, shown: Callable[[], str]) -> Iterator[_Candidate]:
    lines = [(line, _SCORE_LINE.fullmatch(line)) for line in text.splitlines()]
    rationale = "\n".join(line for line, score in lines if score is None).strip()
    for line, score in lines:
        if score is None:
            continue
        named = (score["marker"] or "").strip()
        if named and named != marker:
            raise _Spoilt("the reply names another case than the one asked about")
        if named or not _stands_in(_squeezed(line), shown()):
            yield _Candidate(bool(named), points(score["points"]), rationale, {})


def _points_of(value: Json) -> float | None:
    match value:
        case bool():
            return None
        case int() | float():
            # An int of a thousand digits is no float.
            return in_range(float(value)) if abs(value) < 100 else None
        case str():
            return points(value)
        case _:
            return None


def _text_of(value: Json) -> str | None:
    return (value.strip() or None) if isinstance(value, str) else None


def _criteria(value: Json) -> Iterator[CriterionMark]:
    """The readable marks; a mark that is none is left out, for it decides nothing."""
    for item in value if isinstance(value, list) else ():
        if isinstance(item, dict):
            name, mark = _text_of(item.get("name")), _points_of(item.get("mark"))
            if name is not None and mark is not None:
                yield CriterionMark(name=name, mark=mark)


def _split(text: str) -> tuple[list[tuple[dict[str, Json], str]], str]:
    """The JSON objects that begin a line, each as it is written, and the text around them."""
    decoder = json.JSONDecoder(
        object_pairs_hook=_without_twins,
        parse_constant=_no_constant,
        # A model, or a grammar that holds it, may let a string run over lines.
        strict=False,
    )
    objects: list[tuple[dict[str, Json], str]] = []
    around: list[str] = []
    position = 0
    while (opening := _LINE_WITH_BRACE.search(text, position)) is not None:
        around.append(text[position : opening.start()])
        try:
            found, position = decoder.raw_decode(text, opening.end() - 1)
        except (ValueError, RecursionError):
            # What follows may be the inside of something broken: nothing of it counts.
            raise _Spoilt("a JSON object is cut off or broken") from None
        written = text[opening.end() - 1 : position]
        objects.append((cast("dict[str, Json]", found), written))
    return objects, "".join((*around, text[position:]))


def _without_twins(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Spoilt("a JSON object has a key twice")
    return found


def _no_constant(name: str) -> float:
    raise _Spoilt(f"a JSON object says {name}")


def _unquoted(text: str) -> str:
    """`text` without block quotations, evidence fences and code fences; JSON fences are opened.

    A fence that is never closed hides all that follows.
    """
    kept: list[str] = []
    hidden_until: str | None = None
    in_json = False
    only_fence = text.strip().startswith("```") and text.count("```") == 2
    for line in text.splitlines():
        bare = line.strip()
        if hidden_until is not None:
            hidden_until = None if bare.startswith(hidden_until) else hidden_until
        elif in_json and bare == "```":
            in_json = False
        elif bare.lower() == _JSON_FENCE or (only_fence and bare == "```"):
            in_json = True
        elif bare.startswith(_EVIDENCE) and not bare.startswith(_EVIDENCE_END):
            hidden_until = _EVIDENCE_END
        elif bare.startswith(_FENCES):
            hidden_until = bare[:3]
        elif not bare.startswith(">"):
            kept.append(line)
    return "\n".join(kept)


def _stands_in(line: str, shown: str) -> bool:
    """Whether `line` stands in `shown` with its whole number: `score:1` is not in `score:10`."""
    return re.search(re.escape(line) + r"(?![0-9]|\.[0-9])", shown) is not None


def _squeezed(text: str) -> str:
    """`text` as it is compared: no white space, no markup, no case."""
    return _MARKUP.sub("", text).casefold()


def points(text: str) -> float | None:
    """Read points as coaches write them: "8.5", "8.5.", "10.0", "8/10", "**8**", nothing looser.

    A range ("7-8"), another scale ("80/100", "80%"), a decimal comma, an exponent or a number
    outside [0, 10] is None: a coach's number is read or it is not; it is never guessed.
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
