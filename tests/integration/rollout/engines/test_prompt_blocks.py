"""What all prompts of an agent begin with fills blocks of a server's cache, which are read once."""

from pathlib import Path

import pytest

from mappa_core.core.records.episodes import Message
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.config import RolloutConfig
from mappa_core.rollout.teams import load_team

BLOCK = 32
"""Tokens; `--block-size` of a server on a CPU."""


@pytest.mark.parametrize(
    ("agent", "left_over"), [("problem_solver", 7), ("code_executor", 0), ("verifier", 0)]
)
def test_the_quickstarts_openings_end_with_a_block(
    real_model: Path, agent: str, left_over: int
) -> None:
    tokenizer = ChatTokenizer(str(real_model))
    opening = load_team("mathchat", "small-2", RolloutConfig()).prompts.prompts[agent].opening

    def prompt(problem: str) -> tuple[int, ...]:
        return tokenizer.render((*opening, Message(role="user", content=problem)))

    pairs = zip(prompt("Tom has 5 apples."), prompt("A farm has 7 hens."), strict=False)
    shared = next(i for i, (one, other) in enumerate(pairs) if one != other)
    assert shared % BLOCK == left_over
