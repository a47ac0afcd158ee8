"""What an agent's text says: its visible part, its program, its boxed answer.

    text ─▶ visible ─┬─▶ last_program    the fenced Python block that runs
                     ├─▶ last_boxed      the answer inside the last \\boxed{...}
                     └─▶ clipped         a bounded copy for the next reader

Thinking (`<think>...</think>`) is never visible: it is stored, but neither run nor passed on.
"""

import re

_THINK_TAG = re.compile(r"<(/?)think(?:ing)?\s*>", re.IGNORECASE)
_OPENING_FENCE = re.compile(r"\s*```(?:python3?|py)\s*", re.IGNORECASE)
_FENCE = "```"
_BOXED = "\\boxed{"


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
            program, block = "\n".join(block).rstrip("\n") or program, None
        elif block is not None:
            block.append(line)
    return program if program is None or program.strip() else None


def opens_program(text: str) -> bool:
    """Whether the visible text opens a fenced Python block, closed or not."""
    return any(_OPENING_FENCE.fullmatch(line) for line in visible(text).split("\n"))


def boxed_answers(text: str) -> tuple[str, ...]:
    """What stands in each balanced `\\boxed{...}` of the visible text, in order."""
    shown = visible(text)
    answers: list[str] = []
    start = shown.find(_BOXED)
    while start >= 0:
        begin = start + len(_BOXED)
        end = _closing_brace(shown, begin)
        if end is None:
            break
        answers.append(shown[begin:end].strip())
        start = shown.find(_BOXED, end)
    return tuple(answers)


def last_boxed(text: str) -> str | None:
    """What stands in the last balanced `\\boxed{...}` of the visible text."""
    answers = boxed_answers(text)
    return answers[-1] if answers else None


def _closing_brace(text: str, begin: int) -> int | None:
    depth = 1
    for index in range(begin, len(text)):
        if text[index] == "{":
            depth += 1
        elif text[index] == "}":
            depth -= 1
            if depth == 0:
                return index
    return None


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
