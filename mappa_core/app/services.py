"""Services of a run, opened in the order in which a user can mend what is wrong."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mappa_core.app.checks import check_inputs, coached_team
from mappa_core.app.cluster import open_on_ray, open_storage
from mappa_core.app.config import TrainConfig
from mappa_core.app.engine import engine_setup
from mappa_core.app.fitting import Despite
from mappa_core.app.learning import Learning
from mappa_core.app.opening import find_model, open_databases
from mappa_core.app.placement import experimental, learns_apart, placement
from mappa_core.app.progress import Log, LogProgress, ProgressListener
from mappa_core.audit.store import AuditStore
from mappa_core.cluster.storage import Storage
from mappa_core.coach.opening import open_coaches, start_coaches
from mappa_core.coach.protocols import Coach
from mappa_core.core.settings import Settings
from mappa_core.rollout.engines import start_engine
from mappa_core.rollout.episode_files import EpisodeFiles, open_files
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.protocols import Engine, ProblemSource, Sandbox, Toolbox
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.tools.opening import open_tools
from mappa_core.store.store import Store
from mappa_core.tracking.mlflow.client import import_mlflow
from mappa_core.tracking.mlflow.registry import MlflowRegistry
from mappa_core.tracking.opening import open_tracker
from mappa_core.tracking.protocols import ModelRegistry, Tracker
from mappa_core.train.learners import open_learner
from mappa_core.train.protocols import Learner

if TYPE_CHECKING:
    from mappa_core.models.tokenizer import ChatTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything a flow may use."""

    team: Team
    model: str
    problems: ProblemSource
    tokenizer: "ChatTokenizer"
    engine: Engine
    sandbox: Sandbox
    coach: Coach | None
    """None where nothing is scored: a run that only measures."""
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
    dashboard: str | None = None
    """Where a browser finds that of the cluster this is in; None for none."""
    storage: Storage | None = None
    """Has the checkpoints for nodes that share no folder; None where they do."""

    @property
    def coaches(self) -> tuple[str, ...]:
        """Give the backends of the coaches that score."""
        scoring = (self.coach, self.second_coach)
        return tuple(coach.identity.coach for coach in scoring if coach is not None)

    @property
    def scoring_coach(self) -> Coach:
        """Give the coach that scores.

        Raises:
            LookupError: There is none here.
        """
        if self.coach is None:
            raise LookupError("these services were opened to measure: no coach is open")
        return self.coach

    @property
    def learning(self) -> Learning:
        """Give what an update needs of these.

        Raises:
            LookupError: There is no learner here.
        """
        if self.learner is None:
            raise LookupError("updates are computed by the runs of learner.deployment, not here")
        return Learning(
            learner=self.learner, store=self.store, audit=self.audit, storage=self.storage
        )


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
    """Look up the services of the enclosing `use` or `open_services`."""
    current = _services.get()
    if current is None:
        raise LookupError("no services are open: wrap the call in open_services()")
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
    config: TrainConfig,
    settings: Settings,
    log: Log | None = None,
    *,
    trains: bool = True,
    resumes: bool = False,
    despite: Collection[Despite] = (),
) -> AsyncGenerator[Services]:
    """Build what `config` asks for, or take what an enclosing `use` provides.

    Args:
        config: The run's.
        settings: Where things are.
        log: Told what happens outside of `reporting_to`; None for the logger `mappa`.
        trains: Whether actions are to be scored; a run that only measures opens no coach.
        resumes: Whether a stored run goes on.
        despite: Refusals to overrule, as in `check_inputs`.

    Raises:
        UserError: The input is wrong; nothing was written and nothing started.
        OutsideError: Something outside does not work.
    """
    provided = _services.get()
    if provided is not None:
        yield provided
        return
    progress = _progress.get() or LogProgress(log)
    tell = progress.on_notice
    await asyncio.to_thread(
        check_inputs, config, settings, trains=trains, resumes=resumes, despite=despite, tell=tell
    )
    async with AsyncExitStack() as stack:
        built = await _build(config, settings, progress, stack, trains=trains)
        with use(built), _set_apart():
            yield built


@contextmanager
def _set_apart() -> Generator[None]:
    """Have garbage collections pass by what is there now, which stays: modules, above all."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _build(
    config: TrainConfig,
    settings: Settings,
    progress: ProgressListener,
    stack: AsyncExitStack,
    *,
    trains: bool,
) -> Services:
    # Torch and transformers take seconds to import, and most commands do without.
    from mappa_core.models.tokenizer import ChatTokenizer

    team = load_team(config.team, config.prompts, config.rollout)
    problems = problem_source(config.problems, config.sandbox.workspace_mib)
    progress.on_starting("model")
    model = await find_model(config, settings)
    tokenizer = await asyncio.to_thread(ChatTokenizer, model, config.rollout.chat_template_kwargs)
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
    databases, outage_retry, store = await asyncio.to_thread(
        open_databases, settings, progress.on_waiting, stack
    )
    storage = await asyncio.to_thread(open_storage, config.cluster, settings.checkpoints)
    on_ray = await open_on_ray(config, len(team.agents), stack, trains=trains, storage=storage)
    if on_ray is not None and trains:
        _say(learns_apart(config.learner, on_ray.device), progress.on_notice)
    coach, second = None, None
    if trains:
        elsewhere = on_ray and on_ray.coaches
        judged = coached_team(team)
        coach, second = open_coaches(config.coach, settings, judged, stack, elsewhere)
        progress.on_starting("coach")
        await start_coaches(coach, second)
    progress.on_starting("engines")
    placed = placement(config, len(team.agents))
    _say(experimental(config, placed), progress.on_notice)
    setup = engine_setup(config, settings, team, model, tokenizer.end_token_ids, placed)
    starting = start_engine(setup if on_ray is None else on_ray.setup(setup), stack)
    engine, _ = await asyncio.gather(starting, _import_meanwhile(databases.mlflow))
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
        learner=None
        if config.learner.deployment
        else open_learner(
            config.learner,
            model,
            settings.checkpoints,
            stack,
            gpus=placed.learner,
            launcher=on_ray and on_ray.launch,
            storage=storage,
        ),
        store=store,
        tracker=open_tracker(databases.mlflow, config.tracking, settings, outage_retry),
        registry=MlflowRegistry(databases.mlflow, outage_retry, config.tracking.registered_dtype),
        progress=progress,
        files=open_files(team, problems, settings.workspaces),
        audit=AuditStore(store.database),
        dashboard=on_ray and on_ray.dashboard,
        storage=storage,
    )


async def _import_meanwhile(tracking_uri: str) -> None:
    """Import what a run needs next, while its servers start in processes of their own."""
    import_mlflow(tracking_uri)


def _say(notice: str | None, tell: Callable[[str], None]) -> None:
    if notice is not None:
        tell(notice)
