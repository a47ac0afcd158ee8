"""`mappa serve`: the Prefect and MLflow pages."""

import asyncio
from typing import Annotated

import typer

from mappa_cli.printing.console import open_console
from mappa_core.core.settings import Settings


def serve(
    prefect_port: Annotated[int, typer.Option(min=1, max=65535)] = 4200,
    mlflow_port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
    engines: Annotated[
        bool,
        typer.Option(
            "--engines", help="Keep vLLM in memory, too (1 GB): the next runs start sooner."
        ),
    ] = False,
) -> None:
    """Open the Prefect and MLflow pages on what was stored, until Ctrl-C."""
    from mappa_cli.servers import serve as serve_pages

    console = open_console()
    with serve_pages(Settings(), prefect_port, mlflow_port, engines=engines) as addresses:
        for name, address in addresses.items():
            console.print(f"{name:8} {address}")
        if engines:
            console.print("vLLM     in memory for what starts in this environment")
        console.print("Ctrl-C stops all of it.")
        asyncio.run(_forever())


async def _forever() -> None:
    await asyncio.Event().wait()
