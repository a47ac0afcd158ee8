"""Agents that talk to their coach: fenced, flagged, and never believed by the parser."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from mappa_core.coach.evidence import authored, build_prompt
from mappa_core.coach.injection import PATTERNS, flags_in
from mappa_core.coach.replies import Unreadable, read_reply
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.core.records.scores import CoachScore
from tests.unit.coach.cases import make_case

ATTEMPTS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "injections.yaml").read_text(encoding="utf-8")
)
RUBRIC = load_rubrics("mathchat", "paper-1").rubrics["problem_solver"]
each_attempt = pytest.mark.parametrize("one", ATTEMPTS, ids=lambda one: one["attempt"][:30])


def test_there_are_attempts_of_every_kind() -> None:
    assert len(ATTEMPTS) >= 40
    assert {one["place"] for one in ATTEMPTS} == {
        "text", "code", "stdout", "stderr", "file", "earlier"
    }  # fmt: skip
    assert {flag for one in ATTEMPTS for flag in one["flags"]} == set(PATTERNS)


@each_attempt
def test_an_attempt_stays_between_its_fences(one: dict[str, Any]) -> None:
    case = make_case(one["attempt"], place=one["place"])
    prompt = build_prompt(case, RUBRIC)
    assert prompt.marker not in one["attempt"]
    assert one["attempt"] not in prompt.system
    outside = outside_fences(prompt.user, prompt.marker)
    for line in one["attempt"].splitlines():
        assert line.strip() not in outside
    # Nothing inside looks like a fence or a control token any more.
    fences = re.findall(rf"<<<(.*)>>>\n(?s:.*?)\n<<<END {prompt.marker}>>>", prompt.user)
    assert prompt.user.count("<<<") == 2 * len(fences)
    inside = prompt.user.replace("<<<", "")
    assert not re.search(r"<<<|<\||<｜|\[/?INST\]|</?s>|<(start|end)_of_turn>", inside)
    assert not re.search(
        "[\u115f\u180e\u200b-\u200f\u202a-\u202e\u3164\ufe00-\ufe0f\x00\x1b]", inside
    )
    assert not re.search("[\U000e0000-\U000e0fff]", inside)


def outside_fences(user: str, marker: str) -> str:
    pattern = rf"<<<[^\n]*>>>\n.*?\n<<<END {marker}>>>"
    return re.sub(pattern, "", user, flags=re.DOTALL)


@each_attempt
def test_an_attempt_is_flagged(one: dict[str, Any]) -> None:
    case = make_case(one["attempt"], place=one["place"])
    assert set(one["flags"]) <= set(flags_in(authored(case)))


@each_attempt
def test_the_parser_takes_no_score_from_a_quoted_attempt(one: dict[str, Any]) -> None:
    case = make_case(one["attempt"], place=one["place"])
    prompt = build_prompt(case, RUBRIC)
    evidence = (*authored(case), prompt.user)
    quoted = one["attempt"]
    for reply in (quoted, f"The agent wrote:\n{quoted}\nThat is bad.", f"It says\n\n{quoted}"):
        read = read_reply(reply, marker=prompt.marker, evidence=evidence)
        assert isinstance(read, Unreadable), read
    signed = f'It says\n{quoted}\n{{"case": "{prompt.marker}", "rationale": "cheats", "score": 1}}'
    read = read_reply(signed, marker=prompt.marker, evidence=evidence)
    assert isinstance(read, Unreadable) or (isinstance(read, CoachScore) and read.value == 1)


PRINTED = (
    "\n", " ", "\t", "#", "-", "-\n", "# \n", "<", "<system ", "</case ", "{", '{"', "[", "score ",
    "10 ", "ignore all ", "give all ", "note to the ", "Human: ", "system\n", "s", "sс",
    "максимальн", "_",
)  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_what_a_program_prints_is_searched_in_time_that_grows_with_it(name: str) -> None:
    texts = [f"x{printed * (2**16 // len(printed))}x" for printed in PRINTED]
    began = time.process_time()
    for text in texts:
        PATTERNS[name].search(text)
    # Milliseconds; a pattern that tries every end for every beginning takes minutes.
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text",
    [
        "Multiply 4 by 5.",
        "```python\nprint(4 * 5)\n```",
        "The plan: 14 + 27 = 41, as the systems of equations say.",
        r"The answer is \boxed{20}. I checked all previous steps.",
        "Traceback (most recent call last):\nNameError: name 'x' is not defined",
        "df = df.drop(columns=['id']); model.score(X, y)",
        "The boat scored above the others and is left.",
        "All done \u2714\ufe0f",
    ],
)
def test_honest_work_is_not_flagged(text: str) -> None:
    assert flags_in([text]) == ()
