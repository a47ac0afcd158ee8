"""Arguments and options that several commands take, in the same words."""

from pathlib import Path
from typing import Annotated

import typer

from mappa_core.core.errors import ConfigError

RunName = Annotated[str, typer.Argument(help="A run: its name, id or a prefix of either.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted overrides, e.g. seed=3 rollout.iterations=4.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]


def check_file(path: Path, option: str) -> None:
    """Refuse, before the work, a file named by `option` that could not be written.

    Raises:
        ConfigError: Its folder does not exist, or it is one itself.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}, make it first")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder: name a file in it")
