r"""Reads an agent's text: its visible part, its program, its boxed answer.

    text ─▶ visible ─┬─▶ last_program    the fenced Python block that runs
                     ├─▶ last_block      the same of other languages, e.g. a call of a tool
                     ├─▶ last_boxed      the answer inside the last \boxed{...}
                     └─▶ clipped         a bounded copy for the next reader

Thinking (`<think>...</think>`) is never visible: it is stored, but neither run nor passed on. Where
a chat template opens the thought in the prompt, the text begins with that tag (`opened_thought`).
"""

import re
from collections.abc import Collection, Set
from dataclasses import dataclass

_THINK_TAG = re.compile(r"<(/?)think(?:ing)?\s*>", re.IGNORECASE)
_OPENING_FENCE = re.compile(r"\s*```(\w+)\s*")
_FENCE = "```"
_BOXED = "\\boxed{"
# Escaped braces are matched to be passed over; `\\}` is a line break and a brace.
_BRACE = re.compile(r"\\boxed\{|(?<!\\)\\[{}]|[{}]")

THOUGHT_END = "\n</think>\n\n"
"""As models that think end one, and what they are made to end it with."""
PROGRAM = frozenset({"python", "python3", "py"})
CALL = frozenset({"tool"})
"""What opens a block that holds a program, or a call of a tool, after the fence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block."""

    language: str
    """In lower case."""
    content: str


def visible(text: str) -> str:
    """`text` without its thinking, stripped.

    An unclosed `<think>` hides all that follows. A `</think>` that nothing opened hides all
    before it: the chat template had opened it in the prompt.
    """
    return _read_thoughts(text)[0]


def has_thought(text: str) -> bool:
    """Whether any of `text` is thinking."""
    return _THINK_TAG.search(text) is not None


def ends_in_thought(text: str) -> bool:
    """Whether `text` stops inside a thought that nothing closes."""
    return open_thoughts(text) > 0


def open_thoughts(text: str) -> int:
    """How many tags would close the thought that `text` stops in; they nest."""
    return _read_thoughts(text)[1]


def opened_thought(prompt_end: str) -> str:
    """Where the end of a prompt leaves a thought open, its tag and what follows; else nothing."""
    tags = list(_THINK_TAG.finditer(prompt_end))
    return prompt_end[tags[-1].start() :] if tags and not tags[-1][1] else ""


def continued(thought: str, reply: str) -> str:
    """A reply after the thought that its prompt opened; models may open it once more themselves."""
    again = _THINK_TAG.match(reply.lstrip())
    return reply if again and not again[1] else thought + reply


def _read_thoughts(text: str) -> tuple[str, int]:
    """The visible part, and how many thoughts are open at the end."""
    kept: list[str] = []
    depth = position = 0
    for tag in _THINK_TAG.finditer(text):
        if depth == 0:
            kept.append(text[position : tag.start()])
        if not tag[1]:
            depth += 1
        elif depth == 0:
            kept.clear()
        else:
            depth -= 1
        position = tag.end()
    if depth == 0:
        kept.append(text[position:])
    return "".join(kept).strip(), depth


def last_program(text: str) -> str | None:
    """The last complete fenced Python block of the visible text; None where there is none."""
    block = last_block(text, PROGRAM)
    return block and block.content


def last_block(text: str, languages: Collection[str]) -> Block | None:
    """The last complete fenced block of the visible text in one of `languages`.

    A block is complete when a later line ends with a fence. A second opening fence abandons
    the block before it.
    """
    found: Block | None = None
    block: list[str] | None = None
    language = ""
    for line in visible(text).split("\n"):
        if opened := _opened(line, languages):
            language, block = opened, []
        elif block is not None and line.rstrip().endswith(_FENCE):
            block.append(line.rstrip().removesuffix(_FENCE).rstrip())
            content, block = "\n".join(block).rstrip(), None
            found = Block(language=language, content=content) if content else found
        elif block is not None:
            block.append(line)
    return found


def opens_program(text: str) -> bool:
    """Whether the visible text opens a fenced Python block, closed or not."""
    return any(_opened(line, PROGRAM) for line in visible(text).split("\n"))


def _opened(line: str, languages: Collection[str]) -> str | None:
    """The language of the block that a line opens, where it is one of `languages`."""
    fence = _OPENING_FENCE.fullmatch(line)
    language = fence[1].casefold() if fence else ""
    return language if language in languages else None


def boxed_answers(text: str) -> tuple[str, ...]:
    r"""What stands in each balanced `\boxed{...}` of the visible text, outermost only, in order."""
    shown = visible(text)
    found: list[tuple[int, int]] = []
    open_braces: list[int | None] = []
    for brace in _BRACE.finditer(shown):
        if brace[0] in ("{", _BOXED):
            open_braces.append(brace.end() if brace[0] == _BOXED else None)
        elif brace[0] == "}" and open_braces and (begin := open_braces.pop()) is not None:
            # A box inside this one is part of what this one says.
            while found and found[-1][0] > begin:
                found.pop()
            found.append((begin, brace.start()))
    return tuple(shown[begin:end].strip() for begin, end in found)


def last_boxed(text: str) -> str | None:
    r"""What stands in the last balanced `\boxed{...}` of the visible text; an empty one is None."""
    answers = boxed_answers(text)
    return (answers[-1] or None) if answers else None


def clipped(text: str, limit: int) -> str:
    """`text`, at most `limit` characters of it: both ends stay and the middle says what is cut.

    The note in the middle is not counted.
    """
    if len(text) <= limit:
        return text
    head, tail = limit - limit // 2, limit // 2
    return f"{text[:head]} ...{len(text) - limit} characters left out... {text[len(text) - tail :]}"


def counted(number: int, noun: str) -> str:
    """`1 episode`, `2 episodes`: a number and its noun, thousands set apart."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def common_name(name: str) -> str:
    """What numbered peers are called: `debater` for `debater_2`; any other name as it is."""
    return re.sub(r"_\d+$", "", name)


def jaccard_similarity(one: Set[str], other: Set[str]) -> float:
    """|both| / |either| (Jaccard 1901), in [0, 1]; 1 for two empty sets."""
    return len(one & other) / len(one | other) if one or other else 1.0
