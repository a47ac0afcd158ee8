"""The stand-in reads what real clients send, in both casings, and scores by the prompt alone."""

import pytest

from mappa_cli.provider_stub.dialects import DIALECTS, GEMINI
from mappa_cli.provider_stub.script import Fault, Question, judgement, score_of, seeded_faults
from mappa_core.coach.provider_table import PROVIDERS

SNAKE = {
    "contents": [{"role": "user", "parts": [{"text": "Case 01234567: x"}]}],
    "system_instruction": {"parts": [{"text": "Judge."}]},
    "generation_config": {"max_output_tokens": 9, "thinking_config": {"thinking_budget": 4}},
}
CAMEL = {
    "contents": [{"role": "user", "parts": [{"text": "Case 01234567: x"}]}],
    "systemInstruction": {"parts": [{"text": "Judge."}]},
    "generationConfig": {"maxOutputTokens": 9, "thinkingConfig": {"thinkingBudget": 4}},
}


@pytest.mark.parametrize("body", [SNAKE, CAMEL], ids=["snake", "camel"])
def test_both_casings_are_read(body: dict[str, object]) -> None:
    question = GEMINI.question(body)
    assert question == Question(
        system="Judge.",
        user="Case 01234567: x",
        max_output_tokens=9,
        thinking_budget=4,
    )
    assert question.marker == "01234567"


def test_equal_cases_get_equal_scores_and_different_ones_differ() -> None:
    def asked(marker: str) -> Question:
        return Question(system="", user=f"Case {marker}: x", max_output_tokens=1, thinking_budget=0)

    scores = [score_of(asked(f"{number:08x}")) for number in range(200)]
    assert len(set(scores)) == 21
    assert all(0 <= score <= 10 for score in scores)
    assert f'"score": {score_of(asked("0" * 16))}' in judgement(asked("0" * 16))


def test_faults_are_drawn_by_the_calls_number() -> None:
    kinds = (Fault.HANGING, Fault.BLOCKED)
    question = Question(system="", user="", max_output_tokens=1, thinking_budget=0)
    script, again = (seeded_faults(0.3, 1, kinds) for _ in range(2))
    drawn = [script(question, number) for number in range(1000)]
    assert drawn == [again(question, number) for number in range(1000)]
    assert 250 < sum(fault is not Fault.NONE for fault in drawn) < 350


def test_the_stub_speaks_every_providers_wire_format() -> None:
    assert {row.wire for row in PROVIDERS.values()} == set(DIALECTS)
