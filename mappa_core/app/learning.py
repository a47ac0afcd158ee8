"""Computes updates with nothing else of a run open: no engine, no sandbox, no coach."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from mappa_core.app.checks import auditable
from mappa_core.app.config import TrainConfig
from mappa_core.app.opening import find_model, open_databases
from mappa_core.app.placement import Placement, experimental, learner_gpus
from mappa_core.app.progress import Log, LogProgress
from mappa_core.audit.config import AuditConfig
from mappa_core.audit.corrections import corrected_actions
from mappa_core.audit.store import AuditStore
from mappa_core.cluster.storage import Storage
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import Update
from mappa_core.core.settings import Settings
from mappa_core.store.store import Store
from mappa_core.train.learners import open_learner
from mappa_core.train.protocols import Learner
from mappa_core.train.update import Correct, UpdateRequest, update_agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """What an update needs."""

    learner: Learner
    store: Store
    audit: AuditStore | None
    """Has the corrections of a coach's bias; None where no update asks for one."""
    storage: Storage | None = None
    """Has the checkpoints, too."""

    def compute(self, request: UpdateRequest, config: AuditConfig) -> Update:
        """Compute an update, with a proven bias taken off its scores where that is asked for.

        Raises:
            ConfigError: A correction is asked for and nothing can be audited.
            NotFound: There is no such correction.
            MappaError: As `update_agent`.
        """
        correct = self._corrector(config.correction) if config.correction else None
        return update_agent(
            request,
            learner=self.learner,
            store=self.store,
            correct=correct,
            storage=self.storage,
        )

    def _corrector(self, name: str) -> Correct:
        audit = auditable(self.audit)
        correction = audit.correction(name)

        def correct(
            request: UpdateRequest, actions: Sequence[ScoredAction]
        ) -> Sequence[ScoredAction]:
            return corrected_actions(
                correction, request.run_id, request.iteration, actions, audit=audit
            )

        return correct


@asynccontextmanager
async def open_learning(
    config: TrainConfig, settings: Settings, log: Log | None = None
) -> AsyncGenerator[Learning]:
    """Open the learner of `config`, the store and the audit, and nothing else of a run.

    `log` is told what is to be known and what is waited for; None for the logger `mappa`.

    Raises:
        UserError: The input is wrong.
        OutsideError: Something outside does not work.
    """
    model = await find_model(config, settings)
    gpus = learner_gpus(config)
    progress = LogProgress(log)
    placed = Placement(servers=(), replicas=1, learner=gpus)
    if notice := experimental(config, placed):
        progress.on_notice(notice)
    async with AsyncExitStack() as stack:
        *_, store = await asyncio.to_thread(open_databases, settings, progress.on_waiting, stack)
        learner = await asyncio.to_thread(
            open_learner,
            config.learner,
            model,
            settings.checkpoints,
            stack,
            gpus=gpus,
        )
        yield Learning(learner=learner, store=store, audit=AuditStore(store.database))
