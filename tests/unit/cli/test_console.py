"""What is printed folds on a terminal, and nowhere else."""

import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.text import Text

import mappa_cli
from mappa_cli.printing.console import (
    make_table,
    open_console,
    print_boxed,
    print_facts,
    print_heading,
)
from mappa_cli.printing.progress import TerminalProgress
from mappa_cli.printing.runs import runs_table
from mappa_core.core.records.runs import RunStatus, evaluation_name
from tests.builders import make_run

USUAL = "dsbench-20261121-221038-9627"
NAME = "a-" + "very-" * 40 + "long-name-20261121-221038-9627"
ERROR = "no Postgres at [/run/socket]: " + "words " * 40 + "[end]"
LONG = "word " * 60 + "end"


class Terminal(StringIO):
    """What a terminal is shown."""

    def isatty(self) -> bool:
        return True


def print_everything(name: str) -> None:
    console, run = open_console(), replace(make_run(name), status=RunStatus.FAILED, error=ERROR)
    progress = TerminalProgress(console)
    progress.on_run_started(run)
    progress.on_waiting(LONG)
    console.print(runs_table([run], frozenset()))
    console.print(make_table(LONG, ("narrow",)))
    print_heading(console, LONG)
    print_facts(console, "episode", [("problem", LONG)])
    print_boxed(console, LONG, Text(LONG), "landlock")


def test_a_pipe_gets_whole_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Whatever its user's terminal is like.
    monkeypatch.setenv("COLUMNS", "40")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    print_everything(NAME)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{NAME}  team mathchat, seed 1, sandbox bubblewrap+cgroup+seccomp"
    assert [line for line in lines if NAME in line and ERROR in line and "failed" in line]
    assert sum(LONG in line for line in lines) == 6
    assert max(map(len, lines)) < 1_000


def test_a_terminal_folds_at_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    print_everything(USUAL)
    lines = [Text.from_ansi(line).plain for line in terminal.getvalue().splitlines()]
    assert max(map(len, lines)) == 80
    assert sum("end" in line for line in lines) == 4
    (row,) = [line for line in lines if "failed" in line]
    assert USUAL in row
    assert "no Postgres at…" in row


def test_there_is_one_place_that_knows() -> None:
    here = Path(mappa_cli.__file__).parent
    others = [file for file in here.rglob("*.py") if " Console(" in file.read_text()]
    assert others == [here / "printing/console.py"]


def test_a_lost_run_is_resumed_and_a_lost_evaluation_made_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = replace(make_run(), name=USUAL)
    beside = replace(run, name=evaluation_name(run, run.id))
    assert (run.measures, beside.measures) == (None, USUAL)
    open_console().print(runs_table([run, beside], frozenset()))
    first, second = (line for line in capsys.readouterr().out.splitlines() if USUAL in line)
    assert "resume it" in first
    assert "evaluate again" in second
