"""Opens what a run and a worker that only computes updates both have: the model and the store."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from mappa_core.app.config import TrainConfig
from mappa_core.app.fitting import check_space
from mappa_core.core.outage import OutageRetry
from mappa_core.core.settings import Settings
from mappa_core.store.opening import Databases, open_store, opened_databases
from mappa_core.store.store import Store


async def find_model(config: TrainConfig, settings: Settings) -> str:
    """Find the directory of the run's model; a packaged one is unpacked.

    Raises:
        UserError: There is no such model, or no space for it.
    """
    # Torch and transformers take seconds to import, and most commands do without.
    from mappa_core.models.resolve import resolve_model

    check_space(settings.home)
    return str(await asyncio.to_thread(resolve_model, config.model, settings.models))


def open_databases(
    settings: Settings, tell: Callable[[str], None], stack: AsyncExitStack
) -> tuple[Databases, OutageRetry, Store]:
    """Open the store until `stack` closes; `tell` hears what an outage makes a caller wait for.

    Raises:
        StoreError: As `opened_databases` and `open_store`.
    """
    databases = stack.enter_context(opened_databases(settings))
    outage_retry = OutageRetry(seconds=settings.outage_seconds, tell=tell, revive=databases.revive)
    store = open_store(settings, databases, outage_retry)
    stack.callback(store.close)
    return databases, outage_retry, store
