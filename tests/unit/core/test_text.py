"""Every branch of reading an agent's text; what is thought is never shown, run or counted."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.text import (
    boxed_answers,
    clipped,
    continued,
    counted,
    ends_in_thought,
    has_thought,
    last_boxed,
    last_program,
    opened_thought,
    opens_program,
    visible,
)

PLAIN = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="<`\\{}"), max_size=60)
ANY = st.text(st.characters() | st.sampled_from("<>/`{}\\\n"), max_size=200)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("  padded \n", "padded"),
        ("<think>why</think>so", "so"),
        ("before <think>why</think> after", "before  after"),
        ("<THINK >why</Think>so", "so"),
        ("<thinking>why</thinking>so", "so"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("said <think>and never stopped", "said"),
        ("the template opened it</think>said", "said"),
        ("a</think>b</think>c", "c"),
        ("a<thinker>b", "a<thinker>b"),
        ("1 < 2 and 3 > 2", "1 < 2 and 3 > 2"),
        ("", ""),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    ("end", "opened"),
    [
        ("<|im_start|>assistant\n<think>\n", "<think>\n"),
        ("assistant\n<think>\n\n</think>\n\n", ""),
        ("</think>and<THINK>", "<THINK>"),
        ("assistant\n", ""),
    ],
)
def test_the_end_of_a_prompt_may_leave_a_thought_open(end: str, opened: str) -> None:
    assert opened_thought(end) == opened


@pytest.mark.parametrize(
    ("reply", "shown", "cut"),
    [
        ("hm", "", True),
        ("hm</think>so", "so", False),
        ("\n<think>hm</think>so", "so", False),
        ("</think>so<think>", "so", True),
    ],
)
def test_a_reply_continues_the_thought_of_its_prompt(reply: str, shown: str, cut: bool) -> None:
    text = continued("<think>\n", reply)
    assert (visible(text), ends_in_thought(text), has_thought(text)) == (shown, cut, True)


@given(PLAIN, PLAIN, PLAIN)
def test_a_closed_thought_leaves_exactly_what_is_around_it(
    before: str, thought: str, after: str
) -> None:
    assert visible(f"{before}<think>{thought}</think>{after}") == (before + after).strip()


@given(PLAIN, ANY)
def test_an_open_thought_hides_all_that_follows(before: str, thought: str) -> None:
    assert visible(f"{before}<think>{thought.replace('/', '')}") == before.strip()


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)"),
        ("```py\nprint(1)\n```", "print(1)"),
        ("  ```Python3  \nprint(1)\n  ```", "print(1)"),
        ("Here:\n```python\nx = 1\n\nprint(x)\n\n```\nDone.", "x = 1\n\nprint(x)"),
        ("```python\nprint(1)```", "print(1)"),
        ("```python\nif 1:\n    print(1)\n```", "if 1:\n    print(1)"),
        ("```python\nprint(1)\n```\n```python\nprint(2)\n```", "print(2)"),
        ("```python\nprint(1)\n```\n```python\nprint(2)", "print(1)"),
        ("```python\nprint(1)\n```\n```python\n```", "print(1)"),
        ("```python\nprint(1)\n```\n```python\n   \n```", "print(1)"),
        ("```python\nprint(1)\n```python\nprint(2)\n```", "print(2)"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)"),
        ("```python\nprint(1)", None),
        ("```\nprint(1)\n```", None),
        ("```bash\nls\n```", None),
        ("```python print(1)```", None),
        ("```python\n\n```", None),
        ("no code", None),
        ("", None),
    ],
)
def test_last_program(text: str, program: str | None) -> None:
    assert last_program(text) == program


def test_a_thought_is_never_a_program() -> None:
    thought = "<think>\n```python\nprint('thought')\n```\n"
    assert last_program(thought) is None
    assert last_program(f"{thought}</think>") is None
    assert last_program(f"```python\nprint(1)\n```{thought}</think>") == "print(1)"
    assert not opens_program(thought)


@given(st.lists(st.sampled_from(["x = 1", "", "    y", "'''", "# ä", "print(1)"]), max_size=8))
def test_a_fenced_program_comes_back_line_by_line(lines: list[str]) -> None:
    wanted = "\n".join(lines).rstrip()
    assert last_program(f"Look:\n```python\n{wanted}\n```\nSo.") == (wanted or None)


def test_an_opened_program_need_not_be_closed() -> None:
    assert opens_program("```python\nprint(1)")
    assert not opens_program("```\nprint(1)\n```")


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        (r"\boxed{41}", ("41",)),
        (r"so \boxed{ 41 }.", ("41",)),
        (r"\boxed{\frac{1}{2}}", (r"\frac{1}{2}",)),
        (r"\boxed{1} or \boxed{2}", ("1", "2")),
        (r"\boxed{\boxed{5}}", (r"\boxed{5}",)),
        (r"\\boxed{5}", ("5",)),
        (r"\boxed{1 and then \boxed{2}", ("2",)),
        (r"\boxed{1} and \boxed{2", ("1",)),
        (r"} { \boxed{3}", ("3",)),
        (r"\boxed{\{1,2\}}", (r"\{1,2\}",)),
        (r"\boxed{x < \}}", (r"x < \}",)),
        (r"\boxed{a\\}", (r"a\\",)),
        (r"\boxed{}", ("",)),
        (r"\boxed 5", ()),
        (r"boxed{5}", ()),
        (r"<think>\boxed{1}</think>\boxed{2}", ("2",)),
        (r"\boxed{1}<think>\boxed{2}", ("1",)),
        ("", ()),
    ],
)
def test_boxed_answers(text: str, answers: tuple[str, ...]) -> None:
    assert boxed_answers(text) == answers
    assert last_boxed(text) == ((answers[-1] or None) if answers else None)


@given(ANY, st.integers())
def test_the_last_box_wins_whatever_stands_before_it(before: str, answer: int) -> None:
    # A backslash that ends `before` would escape nothing of ours; only thinking hides a box.
    assert last_boxed(f"{before.replace('<', '')} \\boxed{{{answer}}}") == str(answer)


def test_ten_thousand_open_boxes_take_no_time() -> None:
    assert boxed_answers("\\boxed{" * 10_000) == ()
    assert len(boxed_answers("\\boxed{" * 10_000 + "}" * 10_000)) == 1


@given(ANY)
def test_nothing_a_model_writes_is_too_odd_to_read(text: str) -> None:
    program = last_program(text)
    assert program is None or (program.strip() and opens_program(text))
    assert all(answer in text for answer in boxed_answers(text))


def test_clipping_keeps_both_ends_and_says_how_much_is_gone() -> None:
    assert clipped("abcdef", 6) == "abcdef"
    assert clipped("abcdefghij", 5) == "abc ...5 characters left out... ij"
    assert clipped("abc", 1) == "a ...2 characters left out... "


@given(st.text(max_size=100), st.integers(0, 120))
def test_clipping_is_bounded_and_true(text: str, limit: int) -> None:
    short = clipped(text, limit)
    if len(text) <= limit:
        assert short == text
    else:
        assert short.startswith(text[: limit - limit // 2])
        assert f"...{len(text) - limit} characters left out..." in short
        assert len(short) <= limit + len(" ...100 characters left out... ")


def test_programs_are_python_as_it_was_written() -> None:
    program = last_program("```python\nfor i in range(3):\n    print(i)\n```")
    assert program is not None
    assert isinstance(ast.parse(program).body[0], ast.For)


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12_345, "12,345 rows")]
)
def test_one_is_not_many(number: int, said: str) -> None:
    assert counted(number, "row") == said
