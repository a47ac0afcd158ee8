r"""What an agent's text says: its visible part, its program, its boxed answer.

    text ─▶ visible ─┬─▶ last_program    the fenced Python block that runs
                     ├─▶ last_boxed      the answer inside the last \boxed{...}
                     └─▶ clipped         a bounded copy for the next reader

Thinking (`<think>...</think>`) is never visible: it is stored, but neither run nor passed on.
"""

import re

_THINK_TAG = re.compile(r"<(/?)think(?:ing)?\s*>", re.IGNORECASE)
_OPENING_FENCE = re.compile(r"\s*```(?:python3?|py)\s*", re.IGNORECASE)
_FENCE = "```"
_BOXED = "\\boxed{"
# Escaped braces are matched to be passed over; `\\}` is a line break and a brace.
_BRACE = re.compile(r"\\boxed\{|(?<!\\)\\[{}]|[{}]")


def visible(text: str) -> str:
    """`text` without its thinking, stripped.

    An unclosed `<think>` hides all that follows. A `</think>` that nothing opened hides all
    before it: the chat template had opened it in the prompt.
    """
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
    return "".join(kept).strip()


def last_program(text: str) -> str | None:
    """The last complete fenced Python block of the visible text; None where there is none.

    A block is complete when a later line ends with a fence. A second opening fence abandons
    the block before it.
    """
    program: str | None = None
    block: list[str] | None = None
    for line in visible(text).split("\n"):
        if _OPENING_FENCE.fullmatch(line):
            block = []
        elif block is not None and line.rstrip().endswith(_FENCE):
            block.append(line.rstrip().removesuffix(_FENCE).rstrip())
            code, block = "\n".join(block).rstrip(), None
            program = code or program
        elif block is not None:
            block.append(line)
    return program


def opens_program(text: str) -> bool:
    """Whether the visible text opens a fenced Python block, closed or not."""
    return any(_OPENING_FENCE.fullmatch(line) for line in visible(text).split("\n"))


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
    r"""What stands in the last balanced `\boxed{...}` of the visible text."""
    answers = boxed_answers(text)
    return answers[-1] if answers else None


def clipped(text: str, limit: int) -> str:
    """`text`, at most `limit` characters of it: both ends stay and the middle says what is cut.

    Args:
        text: Any text.
        limit: Characters kept, the note in the middle not counted.
    """
    if len(text) <= limit:
        return text
    head = limit - limit // 2
    tail = limit // 2
    return f"{text[:head]} ...{len(text) - limit} characters left out... {text[len(text) - tail :]}"
