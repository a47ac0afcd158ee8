"""The reader is right about stories, and silent about what it cannot read."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.coach.rules.stories import read_story
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems import problem_source

DATA = Path(__file__).parents[4] / "shared" / "data"


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_it_reads_every_bundled_story_rightly(level: int) -> None:
    source = problem_source(ProblemsConfig(levels=(level,), train_size=500))
    for problem in (*source.train(), *source.held_out()):
        reading = read_story(problem.statement)
        assert reading is not None, problem.statement
        assert reading.value == Fraction(problem.answer), problem.statement


@pytest.mark.parametrize(
    ("story", "operation", "value"),
    [
        ("Tim has 14 pens and buys 27 more. How many pens does Tim have now?", "+", 41),
        ("A shop has 52 cups and sells 18. How many cups are left?", "-", 34),
        ("There are 6 bags with 15 nuts each. How many nuts are there in all?", "*", 90),
        ("Eve shares 48 sweets equally among 6 friends. How many sweets does each get?", "/", 8),
        ("Bo has 9 hats, buys 4 more and loses 2. How many hats are left?", "+-", 11),
        ("Every week Al reads 3 books. How many books does Al read in 5 weeks?", "*", 15),
    ],
)
def test_stories_of_other_authors(story: str, operation: str, value: int) -> None:
    reading = read_story(story)
    assert reading is not None
    assert (reading.operation, reading.value) == (operation, value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "How many primes are below 100?",
        "Tim has 14 pens and 27 cups. What is his name?",
        "Tim has 14 pens and Ann has 27 pens. How many pens are red?",
        "Let $x = 14$ and buy 27 more. How many are left?",
        "Tim has 1.5 litres and buys 27 more. How many litres does Tim have now?",
        "Eve shares 48 sweets equally among 0 friends. How many sweets does each get?",
        "Tim has 14 pens and buys 27 more and 3 cups each. How many pens does Tim have?",
    ],
)
def test_what_the_words_do_not_settle_is_not_read(text: str) -> None:
    assert read_story(text) is None


@pytest.mark.parametrize("file", ["AIME_1983_2024.json", "aime_2025.json", "amc.json"])
def test_competition_problems_are_never_misread(file: str) -> None:
    if not (DATA / file).is_file():
        pytest.skip(f"needs ../shared/data/{file}")
    rows = json.loads((DATA / file).read_text(encoding="utf-8"))
    assert rows
    assert [row["prompt"] for row in rows if read_story(row["prompt"]) is not None] == []


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    read_story(text)


@given(st.text(alphabet="0123456789 .,?abehlmorstwyHTn"))
def test_no_story_like_text_breaks_it(text: str) -> None:
    read_story(f"Tim has {text} more. How many?")
