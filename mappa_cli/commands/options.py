"""Arguments and options that several commands take, in the same words."""

from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(help="A run: its name, id or a prefix of either.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, e.g. seed=3 rollout.iterations=4.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]
