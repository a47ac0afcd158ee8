"""What an update needs, for a process that does nothing else: no engine, no sandbox, no coach."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from mappa_core.app.config import TrainConfig
from mappa_core.app.machine import check_space
from mappa_core.app.progress import Log, LogProgress
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import ConfigError
from mappa_core.core.outage import OutageRetry
from mappa_core.core.settings import Settings
from mappa_core.store.opening import open_store, opened_databases
from mappa_core.store.store import Store
from mappa_core.train.protocols import Learner


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Who computes updates, and where their records are."""

    learner: Learner
    store: Store
    audit: AuditStore | None
    """Has the corrections of a coach's bias; None where no update asks for one."""


@asynccontextmanager
async def open_learning(
    config: TrainConfig, settings: Settings, log: Log | None = None
) -> AsyncGenerator[Learning]:
    """The learner of `config` and the store, and nothing else of a run.

    Args:
        config: The run's.
        settings: Where things are.
        log: Is told what is waited for; None for the logger `mappa`.

    Raises:
        UserError: The input is wrong.
        OutsideError: Something outside does not work.
    """
    # Torch and transformers take seconds to import, and most commands do without.
    from mappa_core.models.resolve import resolve_model

    check_space(settings.home)
    model = str(await asyncio.to_thread(resolve_model, config.model, settings.models))
    async with AsyncExitStack() as stack:
        databases = await asyncio.to_thread(stack.enter_context, opened_databases(settings))
        outage_retry = OutageRetry(
            seconds=settings.outage_seconds,
            tell=LogProgress(log).on_waiting,
            revive=databases.revive,
        )
        store = await asyncio.to_thread(open_store, settings, databases, outage_retry)
        stack.callback(store.close)
        learner = await asyncio.to_thread(open_learner, model, settings, config)
        yield Learning(learner=learner, store=store, audit=AuditStore(store.database))


def open_learner(model: str, settings: Settings, config: TrainConfig) -> Learner:
    """The learner as configured, with the base model in memory.

    Raises:
        ConfigError: A package it needs is missing.
    """
    if config.learner.backend == "deepspeed":
        try:
            from mappa_core.train.learners.deepspeed import DeepspeedLearner
        except ImportError as error:
            raise ConfigError(
                f"learner.backend=deepspeed needs the package {error.name}: install "
                "requirements/gpu.lock, or set learner.backend=torch"
            ) from error
        return DeepspeedLearner(model, settings.checkpoints, config.learner)
    from mappa_core.train.learners.torch_learner import TorchLearner

    return TorchLearner(model, settings.checkpoints, config.learner)
