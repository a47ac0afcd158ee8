"""What the stand-in answers: a judgement made of the prompt's hash, or a fault."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TypeAlias

_MARKER = re.compile(r"\bCase ([0-9a-f]{8}):")


class Fault(StrEnum):
    """What may go wrong with one call."""

    NONE = "none"
    RATE_LIMITED = "rate_limited"
    """429 that says when to come back."""
    UNAVAILABLE = "unavailable"
    """503."""
    INTERNAL = "internal"
    """500."""
    BAD_GATEWAY = "bad_gateway"
    """502 with an HTML page."""
    SLOW = "slow"
    """The answer comes late."""
    HANGING = "hanging"
    """The answer never comes."""
    CUT_CONNECTION = "cut_connection"
    """The connection ends in the middle of the body."""
    TRUNCATED = "truncated"
    """The reply is cut off by the output limit."""
    BLOCKED = "blocked"
    """The prompt is blocked by a safety filter; final."""
    PROSE = "prose"
    """The reply is no JSON and names no score."""
    WRONG_SCORE = "wrong_score"
    """The reply's score is 11."""
    FORBIDDEN = "forbidden"
    """403; final."""
    NOT_FOUND = "not_found"
    """404; final."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request, whatever its wire format."""

    system: str
    user: str
    max_output_tokens: int
    thinking_budget: int
    structured: bool = False
    """Whether the reply is held to a JSON schema."""

    @property
    def marker(self) -> str:
        """The case's marker, as a careful model would find it."""
        found = _MARKER.search(self.user)
        return found[1] if found else "no case"


Script: TypeAlias = Callable[[Question, int], Fault]
"""Which fault the n-th call meets, n from 0."""


def no_faults(question: Question, number: int) -> Fault:  # noqa: ARG001
    """Every call is answered."""
    return Fault.NONE


def seeded_faults(share: float, seed: int, kinds: tuple[Fault, ...]) -> Script:
    """A share of the calls meets one of `kinds`, drawn by the call's number."""

    def script(question: Question, number: int) -> Fault:  # noqa: ARG001
        draw = Random(f"{seed}/{number}")  # noqa: S311
        return draw.choice(kinds) if draw.random() < share else Fault.NONE

    return script


def score_of(question: Question) -> float:
    """The score of a prompt, in steps of 0.5: its hash, so that equal prompts get equal scores."""
    digest = hashlib.sha256(question.marker.encode()).digest()
    return digest[0] % 21 / 2


def judgement(question: Question, score: float | None = None) -> str:
    """A structured reply."""
    reply: Mapping[str, str | float | list[dict[str, str | float]]] = {
        "case": question.marker,
        "rationale": "The action does what its role asks for, as far as the evidence shows. It "
        "takes up what the earlier agents left, names what is needed and nothing that is not, and "
        "hands over something that can be used as it stands. What keeps it from a higher score is "
        "that it does not check its own result against the words of the task before it ends.",
        "criteria": [{"name": "overall", "mark": score_of(question)}],
        "blamed": "",
        "score": score_of(question) if score is None else score,
    }
    return json.dumps(reply)


def reply_text(question: Question, fault: Fault) -> str:
    """What the model says under `fault`."""
    match fault:
        case Fault.TRUNCATED:
            return judgement(question)[: -len('"score": 10.0}')]
        case Fault.PROSE:
            return "I would say that this is rather good work, 8 of 10 people would agree."
        case Fault.WRONG_SCORE:
            return judgement(question, 11.0)
        case _:
            return judgement(question)
