"""CHAMP's labels as pairs of known order, and files that are not CHAMP's."""

import json
from pathlib import Path

import pytest

from mappa_core.audit.exam.champ import champ_pairs
from mappa_core.core.errors import ConfigError
from mappa_core.rollout.teams import load_team

MATHCHAT = load_team("mathchat", "small-1")


def solution(text: str, wrong_from: int | None) -> dict[str, object]:
    return {"text": text, "start_idx": wrong_from, "end_idx": wrong_from, "author": "a model"}


@pytest.fixture
def champ(tmp_path: Path) -> Path:
    """The published layout: problems by name, solutions by model and prompt."""
    problems = {
        "P_Parity_1": {
            "_text": "Is n^2 + n even?",
            "_answer": "yes",
            "fws_annotations": {
                "GPT-4|No C w/o H": solution("n(n + 1): one of them is even.", None),
                "GPT-3.5|No C w/o H": solution("n = 1 gives 3.", 0),
            },
        },
        "P_Parity_2": {
            "_text": "Is n^2 + 1 odd?",
            "_answer": "not always",
            "fws_annotations": {"GPT-4|No C w/o H": solution("n = 1 gives 2.", None)},
        },
    }
    file = tmp_path / "v0.json"
    file.write_text(json.dumps({"problems": problems, "concepts": {}, "hints": {}}))
    return file


def test_a_problem_with_both_kinds_is_a_pair(champ: Path) -> None:
    (pair,) = champ_pairs(MATHCHAT, champ)
    assert (pair.kind, pair.agent) == ("sound over flawed", "problem_solver")
    assert pair.better.case.text == "n(n + 1): one of them is even."
    assert pair.worse.case.text == "n = 1 gives 3."
    assert pair.better.case.statement == "Is n^2 + n even?"
    assert pair.better.case.earlier == ()


def test_what_is_not_champ_is_refused_in_one_line(tmp_path: Path, champ: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    with pytest.raises(ConfigError, match=r"is not CHAMP's v0\.json"):
        champ_pairs(MATHCHAT, other)
    with pytest.raises(ConfigError, match="cannot be read"):
        champ_pairs(MATHCHAT, tmp_path / "none.json")
    with pytest.raises(ConfigError, match="works on files"):
        champ_pairs(load_team("dsbench", "small-1"), champ)
