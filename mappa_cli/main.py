"""The command line: every command, as `mappa --help` lists them, and how each of them ends.

Exit codes: 0 done, 2 bad input, 1 failed, 130 stopped by Ctrl-C, 143 by SIGTERM. Every error is
one line.
Prefect, MLflow and torch take seconds to import, so each command imports what it needs.
"""

import atexit
import gc
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from flows.ending import INTERRUPTED, sigterm_unwinds
from mappa_cli.commands.audit import audit_command
from mappa_cli.commands.bench import bench
from mappa_cli.commands.coach_model import coach_model
from mappa_cli.commands.config import config
from mappa_cli.commands.db import database
from mappa_cli.commands.doctor import doctor
from mappa_cli.commands.evaluate import evaluate_command
from mappa_cli.commands.export import export
from mappa_cli.commands.label import label
from mappa_cli.commands.problems import problems
from mappa_cli.commands.promote import promote_command
from mappa_cli.commands.report import report_command
from mappa_cli.commands.reproduce import reproduce
from mappa_cli.commands.rescore import rescore
from mappa_cli.commands.rubric import rubric
from mappa_cli.commands.runs import runs
from mappa_cli.commands.serve import serve
from mappa_cli.commands.show import show
from mappa_cli.commands.train import train_command
from mappa_cli.printing.console import open_console
from mappa_core.core.errors import MappaError, UserError

_COMMANDS = {
    "Train": {
        "train": train_command,
        "evaluate": evaluate_command,
        "promote": promote_command,
        "reproduce": reproduce,
    },
    "Look": {
        "runs": runs,
        "show": show,
        "report": report_command,
        "serve": serve,
        "export": export,
    },
    "Judge the coach": {
        "audit": audit_command,
        "label": label,
        "rescore": rescore,
        "rubric": rubric,
    },
    "Set up": {
        "doctor": doctor,
        "config": config,
        "problems": problems,
        "db": database,
        "bench": bench,
        "coach-model": coach_model,
    },
}

_COLLECTED_AFTER = 100_000
"""New objects before garbage is looked for. By Python's 700 there are 2,000 collections while a run
imports what it needs, which take a fifth of that time."""

app = typer.Typer(
    help="Train teams of language-model agents from per-action coach scores.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(_name, rich_help_panel=_panel)(_command)


def command() -> NoReturn:
    """Be the process of one command.

    It ends as any other does, but for one thing: what was imported is not taken apart, which takes
    seconds where torch, Prefect and MLflow are among it.
    """
    code = 0
    try:
        main()
    except SystemExit as left:
        if not isinstance(left.code, int | None):
            raise
        code = left.code or 0
    threading._shutdown()  # noqa: SLF001  # pyright: ignore
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(code)


def main() -> None:
    """Run the command line and leave with its exit code."""
    gc.set_threshold(_COLLECTED_AFTER, *gc.get_threshold()[1:])
    try:
        with sigterm_unwinds():
            try:
                app()
            finally:
                sys.stdout.flush()
    except MappaError as error:
        open_console(stderr=True).print(f"mappa: {error}", soft_wrap=True)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except OSError as error:
        # A file that cannot be written where the user named it, or a full disk behind stdout. A
        # reader that stopped reading (`mappa runs | head`) knows.
        if not isinstance(error, BrokenPipeError):
            open_console(stderr=True).print(f"mappa: {error}", soft_wrap=True)
        _drop_stdout()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _drop_stdout() -> None:
    """Lose what stdout would not take, which Python tries again as it exits."""
    with suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
