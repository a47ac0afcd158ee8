"""All services of a run, built in the order in which a user can mend what is wrong."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from mappa_core.app.checks import coached_team
from mappa_core.app.config import TrainConfig
from mappa_core.app.learning import Learning, open_learner
from mappa_core.app.machine import check_space
from mappa_core.app.progress import Log, LogProgress, ProgressListener
from mappa_core.audit.store import AuditStore
from mappa_core.coach.opening import open_coaches
from mappa_core.coach.protocols import Coach
from mappa_core.core.outage import OutageRetry
from mappa_core.core.settings import Settings
from mappa_core.rollout.engines import start_engine
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.episode_files import EpisodeFiles, open_files
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.protocols import Engine, ProblemSource, Sandbox, Tokenizer, Toolbox
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.tools.opening import open_tools
from mappa_core.store.opening import open_store, opened_databases
from mappa_core.store.store import Store
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.opening import open_tracker
from mappa_core.tracking.protocols import ModelRegistry, Tracker
from mappa_core.train.protocols import Learner


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
    progress: ProgressListener
    toolbox: Toolbox | None = None
    """None where no agent has tools beyond Python."""
    second_coach: Coach | None = None
    """Gives a second opinion on a share of the actions."""
    files: EpisodeFiles | None = None
    """Of a team that works on files; None for others."""
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


_progress: ContextVar[ProgressListener | None] = ContextVar("progress", default=None)
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
def reporting_to(progress: ProgressListener) -> Generator[None]:
    """Tell `progress` what happens inside the block, before any other."""
    token = _progress.set(progress)
    try:
        yield
    finally:
        _progress.reset(token)


@asynccontextmanager
async def open_services(
    config: TrainConfig, settings: Settings, log: Log | None = None
) -> AsyncGenerator[Services]:
    """Build what `config` asks for, or take what an enclosing `use` provides.

    Args:
        config: What the run is to be.
        settings: Where things are.
        log: Is told what happens where nobody is `reporting_to`; None for the logger `mappa`.

    Raises:
        UserError: The input is wrong; nothing was written.
        OutsideError: Something outside does not work.
    """
    provided = _services.get()
    if provided is not None:
        yield provided
        return
    async with AsyncExitStack() as stack:
        progress = _progress.get() or LogProgress(log)
        built = await _build(config, settings, progress, stack)
        with use(built):
            yield built


async def _build(
    config: TrainConfig, settings: Settings, progress: ProgressListener, stack: AsyncExitStack
) -> Services:
    # Torch and transformers take seconds to import, and most commands do without.
    from mappa_core.models.resolve import resolve_model
    from mappa_core.models.tokenizer import ChatTokenizer

    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems, config.sandbox.workspace_mib)
    check_space(settings.home)
    progress.on_starting("model")
    model = str(await asyncio.to_thread(resolve_model, config.model, settings.models))
    tokenizer = await asyncio.to_thread(ChatTokenizer, model)
    progress.on_starting("sandbox")
    sandbox = await choose_sandbox(
        config.sandbox.backend,
        config.sandbox.concurrency,
        config.sandbox.runtime,
        fusion_url=settings.sandboxfusion_url,
        image=settings.sandbox_image,
    )
    stack.push_async_callback(sandbox.close)
    team, toolbox = await open_tools(team, config.tools, settings, stack)
    progress.on_starting("database")
    databases = await asyncio.to_thread(stack.enter_context, opened_databases(settings))
    outage_retry = OutageRetry(
        seconds=settings.outage_seconds, tell=progress.on_waiting, revive=databases.revive
    )
    store = await asyncio.to_thread(open_store, settings, databases, outage_retry)
    stack.callback(store.close)
    coach, second = open_coaches(config.coach, settings, coached_team(team), stack)
    progress.on_starting("engines")
    engine = await start_engine(
        _engine_setup(config, settings, team, model, tokenizer.end_token_ids), stack
    )
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
        tracker=open_tracker(databases.mlflow, config.tracking, settings, outage_retry),
        registry=MlflowRegistry(databases.mlflow, outage_retry),
        progress=progress,
        files=open_files(team, problems, settings.workspaces),
        audit=AuditStore(store.database),
    )


def _engine_setup(
    config: TrainConfig, settings: Settings, team: Team, model: str, ends: tuple[int, ...]
) -> EngineSetup:
    return EngineSetup(
        config=config.engine,
        model=model,
        agents=tuple(agent.name for agent in team.agents),
        end_token_ids=ends,
        work_directory=settings.home / "engine",
        log_directory=settings.logs,
        whole_weights=config.learner.weights == "full",
        lora_rank=config.learner.lora.rank,
    )
