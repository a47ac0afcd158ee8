"""Shared by commands that read a stored run or start a flow."""

from collections.abc import Callable, Collection, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from rich.console import Console

from mappa_core.app.config import TrainConfig
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_cli.printing.progress import TerminalProgress
    from mappa_core.app.fitting import Despite


def stored_run(name: str) -> Run:
    """Read a run by its name, its id or a prefix of either.

    Raises:
        NotFound: No such run.
    """
    from mappa_core.store.opening import opened_store

    with opened_store(Settings()) as store:
        return store.runs.get_run(name)


@contextmanager
def watched(
    config: TrainConfig,
    settings: Settings,
    console: Console,
    *,
    trains: bool = True,
    resumes: bool = False,
    despite: "Collection[Despite]" = (),
) -> "Generator[TerminalProgress]":
    """Check a configuration, then start its servers and show its progress for the block.

    Raises:
        UserError: It cannot be run.
    """
    from mappa_cli.printing.progress import TerminalProgress
    from mappa_cli.servers import prefect_server
    from mappa_core.app.checks import check_inputs
    from mappa_core.app.engine import engine_prestarted

    team = check_inputs(config, settings, trains=trains, resumes=resumes, despite=despite)
    from mappa_core.models.resolve import check_model

    with ExitStack() as stack:
        progress = stack.enter_context(TerminalProgress(console))
        if not check_model(config.model, settings.models):
            progress.on_notice(f"{config.model} is converted before this first run, once")
        progress.on_starting("Prefect")
        begin_servers = stack.enter_context(engine_prestarted(config, settings, team))
        beside = stack.enter_context(ThreadPoolExecutor())
        importing = beside.submit(_import_beginning, begin_servers)
        stack.enter_context(prefect_server(settings))
        importing.result()
        from mappa_core.app.services import reporting_to

        stack.enter_context(reporting_to(progress))
        yield progress


def _import_beginning(begin_servers: Callable[[], None]) -> None:
    """Import and convert what takes seconds, as Prefect's server does to start; begin servers."""
    begin_servers()
    import_module("mappa_core.models.tokenizer")


def as_yaml(values: Mapping[str, object]) -> str:
    """A configuration as people write it."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(dict(values))).rstrip()
