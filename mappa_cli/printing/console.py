"""Opens the console that commands print on, and the shapes that depend on where it leads.

a terminal         folds at its width; rules and panels
a pipe or a file   a line stays a line, whatever its length, so that grep and diff see all of it
"""

from collections.abc import Collection, Iterable, Sequence

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

UNFOLDED = 1_000_000
"""Columns where there is no terminal."""


def open_console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr; texts are printed as they are, brackets and all."""
    console = Console(stderr=stderr, markup=False, highlight=False)
    if not console.is_terminal:
        console.width = UNFOLDED
    return console


def make_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[RenderableType]] = (),
    *,
    numbers: Collection[str] = (),
) -> Table:
    """A table below a title that has the room to stay in one line; `numbers` are flush right."""
    heads = (Column(name, justify="right" if name in numbers else "left") for name in columns)
    made = Table(*heads, title=title or None, title_justify="left", min_width=len(title))
    for row in rows:
        made.add_row(*row)
    return made


def print_heading(console: Console, title: str) -> None:
    """Begin a part of a page."""
    console.print(Rule(title, align="left") if console.is_terminal else f"=== {title}")


def print_boxed(console: Console, title: str, body: Text, footnote: str = "") -> None:
    """A text of its own within a page."""
    if console.is_terminal:
        console.print(Panel(body, title=title, title_align="left", subtitle=footnote or None))
        return
    console.print(f"--- {title}{footnote and f', {footnote}'}")
    console.print(body)


def print_facts(console: Console, title: str, facts: Iterable[tuple[str, str]]) -> None:
    """Names and values, a line each."""
    if console.is_terminal:
        grid = Table.grid(padding=(0, 2))
        for name, value in facts:
            grid.add_row(Text(name, style="dim"), Text(value))
        console.print(Panel(grid, title=title, title_align="left"))
        return
    console.print(f"--- {title}")
    for name, value in facts:
        console.print(f"{name}: {value}")
