"""What a coach says that it reads is all that moves its scores."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from mappa_core.coach.protocols import ReadingCoach
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.core.records.episodes import Message, Outcome
from mappa_core.core.records.scores import CoachCase, CoachScore, Fact
from tests.fakes.coaching import ScriptedProvider
from tests.unit.coach.cases import make_case
from tests.unit.coach.test_llm_coach import make_coach
from tests.unit.coach.test_rules_golden import GOLDEN

OUTCOME = Outcome(success=True, answer="5", method="math-verify")
UNREAD: Mapping[str, Any] = {
    "task_type": "another",
    "messages": (Message(role="user", content="something else, 12 + 7"),),
    "facts": (Fact(name="roc_auc", text="0.99"),),
    "outcome": OUTCOME,
    "expected_answer": "5",
    "sample": 7,
}


@pytest.mark.parametrize("field", UNREAD)
def test_the_rule_coach_scores_by_what_it_reads(field: str) -> None:
    for stored in GOLDEN:
        case = TypeAdapter(CoachCase).validate_python(stored["case"])
        other = replace(case, **{field: UNREAD[field]})
        coach = RuleCoach(stored["rules"])
        assert coach.reads(case) == coach.reads(other)
        assert _points(coach, case) == _points(coach, other)


def _points(coach: RuleCoach, case: CoachCase) -> float | None:
    score = asyncio.run(coach.score(case))
    return score.value if isinstance(score, CoachScore) else None


def test_a_model_reads_its_prompt() -> None:
    coach, case = make_coach(ScriptedProvider()), make_case()
    assert isinstance(coach, ReadingCoach)
    assert coach.reads(case) == coach.reads(replace(case, sample=3))
    for changed in (
        replace(case, task_type="addition"),
        replace(case, agent="verifier"),
        replace(case, outcome=OUTCOME),
        replace(case, text=case.text + "!"),
    ):
        assert coach.reads(changed) != coach.reads(case)
