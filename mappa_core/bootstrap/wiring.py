"""All services of a run, built in the order in which a user can mend what is wrong."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mappa_core.adapters.mlflow.registry import MlflowRegistry
from mappa_core.adapters.mlflow.tracker import MlflowTracker
from mappa_core.adapters.problems import problem_source
from mappa_core.adapters.sandboxes.choose import choose_sandbox
from mappa_core.adapters.store.auditing import PostgresAudit
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.adapters.watchers import Log, LogWatcher
from mappa_core.config import TrainConfig
from mappa_core.patience import Patience
from mappa_core.ports import (
    AuditStore,
    Coach,
    Engine,
    Learner,
    ModelRegistry,
    ProblemSource,
    Sandbox,
    Store,
    Tokenizer,
    Toolbox,
    Tracker,
    Watcher,
)
from mappa_core.settings import Settings
from mappa_core.teams import load_team
from mappa_core.teams.base import Team

if TYPE_CHECKING:
    from mappa_core.steps import Desk
from mappa_core.bootstrap.coaches import open_coaches
from mappa_core.bootstrap.databases import Databases, databases_of, open_store
from mappa_core.bootstrap.engines import start_engine
from mappa_core.bootstrap.inputs import desk_of
from mappa_core.bootstrap.learning import Learning, open_learner
from mappa_core.bootstrap.machine import check_space
from mappa_core.bootstrap.tools import open_tools
from mappa_core.bootstrap.tracking import with_curves


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a flow may use."""

    team: Team
    model: str
    problems: ProblemSource
    tokenizer: Tokenizer
    engine: Engine
    sandbox: Sandbox
    coach: Coach
    learner: Learner | None
    """None where the runs of a deployment compute the updates (`learner.deployment`)."""
    store: Store
    tracker: Tracker
    registry: ModelRegistry
    watcher: Watcher
    toolbox: Toolbox | None = None
    """None where no agent has tools beyond Python."""
    second_coach: Coach | None = None
    """Gives a second opinion on a share of the actions."""
    desk: "Desk | None" = None
    """For a team that works on files; None for others."""
    audit: AuditStore | None = None
    """Watches the coach during training; None for no watch."""

    @property
    def learning(self) -> Learning:
        """What an update needs of these.

        Raises:
            LookupError: There is no learner here.
        """
        if self.learner is None:
            raise LookupError("updates are computed by the runs of learner.deployment, not here")
        return Learning(learner=self.learner, store=self.store, audit=self.audit)


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_services: ContextVar[Services | None] = ContextVar("services", default=None)


@contextmanager
def use(services: Services) -> Generator[None]:
    """Let everything inside the block use `services`."""
    token = _services.set(services)
    try:
        yield
    finally:
        _services.reset(token)


def services() -> Services:
    """The services of the enclosing `use` or `open_services`."""
    current = _services.get()
    if current is None:
        raise LookupError("no services are open: wrap the call in bootstrap.open_services()")
    return current


@contextmanager
def watching(watcher: Watcher) -> Generator[None]:
    """Tell `watcher` what happens inside the block, before any other."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@asynccontextmanager
async def open_services(
    config: TrainConfig, settings: Settings, log: Log | None = None
) -> AsyncGenerator[Services]:
    """Build what `config` asks for, or take what an enclosing `use` provides.

    Args:
        config: What the run is to be.
        settings: Where things are.
        log: Is told what happens where nobody is `watching`; None for the logger `mappa`.

    Raises:
        UserError: The input is wrong; nothing was written.
        OutsideError: Something outside does not work.
    """
    provided = _services.get()
    if provided is not None:
        yield provided
        return
    async with AsyncExitStack() as stack:
        watcher = _watcher.get() or LogWatcher(log)
        built = await _build(config, settings, watcher, stack)
        with use(built):
            yield built


async def _build(
    config: TrainConfig, settings: Settings, watcher: Watcher, stack: AsyncExitStack
) -> Services:
    # Torch and transformers take seconds to import, and most commands do without.
    from mappa_core.adapters.huggingface.models import resolve_model
    from mappa_core.adapters.huggingface.tokenizer import ChatTokenizer

    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems, config.sandbox.workspace_mib)
    check_space(settings.home)
    watcher.starting("model")
    model = str(await asyncio.to_thread(resolve_model, config.model, settings.models))
    tokenizer = await asyncio.to_thread(ChatTokenizer, model)
    watcher.starting("sandbox")
    sandbox = await choose_sandbox(
        config.sandbox.backend,
        config.sandbox.concurrency,
        config.sandbox.runtime,
        fusion_url=settings.sandboxfusion_url,
        image=settings.sandbox_image,
    )
    stack.push_async_callback(sandbox.close)
    team, toolbox = await open_tools(team, config.tools, settings, stack)
    watcher.starting("database")
    databases = await asyncio.to_thread(databases_of, settings, stack)
    patience = Patience(
        seconds=settings.patience_seconds, tell=watcher.waiting, revive=databases.revive
    )
    store = await asyncio.to_thread(open_store, settings, databases, patience)
    stack.callback(store.close)
    coach, second = open_coaches(config.coach, settings, team, stack)
    watcher.starting("engines")
    engine = await start_engine(config, settings, team, model, tokenizer, stack)
    return Services(
        team=team,
        model=model,
        problems=problems,
        tokenizer=tokenizer,
        engine=engine,
        sandbox=sandbox,
        toolbox=toolbox,
        coach=coach,
        second_coach=second,
        learner=None if config.learner.deployment else open_learner(model, settings, config),
        store=store,
        tracker=_tracker(config, settings, databases, patience),
        registry=MlflowRegistry(databases.mlflow, patience),
        watcher=watcher,
        desk=desk_of(team, problems, settings),
        audit=_audit_of(store, stack),
    )


def _tracker(
    config: TrainConfig, settings: Settings, databases: Databases, patience: Patience
) -> Tracker:
    tracker = MlflowTracker(databases.mlflow, settings.mlflow / "artifacts", patience)
    return with_curves(tracker, config.tracking, settings)


def _audit_of(store: PostgresStore, stack: AsyncExitStack) -> PostgresAudit:
    audit = PostgresAudit.beside(store)
    stack.callback(audit.close)
    return audit
