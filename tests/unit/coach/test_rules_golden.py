"""Scores of the rules on cases stored as data: a set that scores otherwise is another version."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from mappa_core.coach.rules import RULE_SETS, rules_sha256
from mappa_core.core.records.scores import CoachCase

STORED = Path(__file__).with_name("rules_golden.jsonl")
"""One case a line: the set of rules, its version, points and rationale, the case."""
GOLDEN: list[dict[str, Any]] = [json.loads(line) for line in STORED.read_text().splitlines()]
CASES = TypeAdapter(CoachCase)
MEND = (
    "the rules {} score otherwise than their version says: raise the `version` of the set in "
    "mappa_core/coach/rules/__init__.py, then run `python -m tests.unit.coach.test_rules_golden`"
)


def scored(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the file as the rules score its case now."""
    rules = RULE_SETS[stored["rules"]]
    case = CASES.validate_python(stored["case"])
    judged = rules.judges[case.agent](case)
    score = None if judged is None else [round(judged.points, 9), judged.rationale]
    return {**stored, "version": rules.version, "score": score}


@pytest.mark.parametrize("name", RULE_SETS)
def test_scores_are_those_of_the_version(name: str) -> None:
    stored = [each for each in GOLDEN if each["rules"] == name]
    assert [scored(each) for each in stored] == stored, MEND.format(name)


@pytest.mark.parametrize("name", RULE_SETS)
def test_every_agent_has_cases_that_score_low_and_high(name: str) -> None:
    for agent in RULE_SETS[name].judges:
        cases = [e for e in GOLDEN if (e["rules"], e["case"]["agent"]) == (name, agent)]
        points = [each["score"][0] for each in cases]
        assert min(points) < 5 <= max(points), agent


def test_the_identity_of_a_set_is_its_name_and_version() -> None:
    stored = "ef0de6dd908669ff56d85ce0974e5a793105222dd1a10c5554c185a80a669bad"
    assert RULE_SETS["mathchat"].version != 2 or rules_sha256("mathchat") == stored


def write() -> None:
    """Store what the rules score now."""
    lines = [json.dumps(scored(stored), ensure_ascii=False) for stored in GOLDEN]
    STORED.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write()
