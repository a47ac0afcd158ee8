"""The one place that chooses adapters.

    async with open_services(config, settings) as services:   real ones, as configured
    with use(services):                                       anything else, in tests

Order matters when something is wrong: what the user can mend is checked before anything is
written (problems, model, sandbox), then the database, then what takes long (engines).
"""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from mappa_core.adapters.llm_coach.budget import Budget
from mappa_core.adapters.llm_coach.coach import LlmCoach
from mappa_core.adapters.llm_coach.provider import Provider
from mappa_core.adapters.mlflow.registry import MlflowRegistry
from mappa_core.adapters.mlflow.tracker import MlflowTracker
from mappa_core.adapters.problems import problem_source
from mappa_core.adapters.rule_coach.coach import RuleCoach
from mappa_core.adapters.sandboxes.choose import choose_sandbox
from mappa_core.adapters.store import backup, schema
from mappa_core.adapters.store.auditing import PostgresAudit
from mappa_core.adapters.store.connection import for_psql, ping
from mappa_core.adapters.store.embedded import start_embedded
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.adapters.tensorboard.tracker import WithTensorBoard
from mappa_core.adapters.watchers import LogWatcher
from mappa_core.adapters.workspaces.snapshots import SnapshotWorkspaces
from mappa_core.coaching.rubrics import RubricSet, load_rubrics, turned_round
from mappa_core.config import CoachConfig, CoachModelConfig, EngineConfig, TrainConfig
from mappa_core.domain.errors import ConfigError, DiskFull
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
    TaskSource,
    Tokenizer,
    Tracker,
    Watcher,
)
from mappa_core.settings import Settings
from mappa_core.teams import load_team
from mappa_core.teams.base import Team

if TYPE_CHECKING:
    from mappa_core.adapters.huggingface.tokenizer import ChatTokenizer
    from mappa_core.adapters.vllm.server import Zygote
    from mappa_core.steps import Desk

SPARE_BYTES = 2 * 2**30
"""Free space asked for before a run starts: a converted model, merged weights, checkpoints."""


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
    learner: Learner
    store: Store
    tracker: Tracker
    registry: ModelRegistry
    watcher: Watcher
    second_coach: Coach | None = None
    """Gives a second opinion on a share of the actions."""
    desk: "Desk | None" = None
    """For a team that works on files; None for others."""
    audit: AuditStore | None = None
    """Watches the coach during training; None for no watch."""


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
_zygote: ContextVar["Zygote | None"] = ContextVar("zygote", default=None)
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
    """Tell `watcher` what happens inside the block; without one, it is logged."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def warming(config: TrainConfig, settings: Settings) -> Generator[None]:
    """Begin what takes longest in opening the services, beside all that comes before them."""
    if config.engine.backend != "vllm":
        yield
        return
    from mappa_core.adapters.vllm.server import open_zygote

    zygote = open_zygote(config.engine, settings.logs)
    zygote.start()
    token = _zygote.set(zygote)
    try:
        yield
    finally:
        _zygote.reset(token)
        zygote.close()


@asynccontextmanager
async def open_services(config: TrainConfig, settings: Settings) -> AsyncGenerator[Services]:
    """Build what `config` asks for, or take what an enclosing `use` provides.

    Raises:
        UserError: The input is wrong; nothing was written.
        OutsideError: Something outside does not work.
    """
    provided = _services.get()
    if provided is not None:
        yield provided
        return
    async with AsyncExitStack() as stack:
        built = await _build(config, settings, stack)
        with use(built):
            yield built


async def _build(config: TrainConfig, settings: Settings, stack: AsyncExitStack) -> Services:
    # Torch and transformers take seconds to import, and most commands do without.
    from mappa_core.adapters.huggingface.models import resolve_model
    from mappa_core.adapters.huggingface.tokenizer import ChatTokenizer

    watcher = _watcher.get() or LogWatcher()
    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems)
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
    watcher.starting("database")
    databases = await asyncio.to_thread(_databases, settings, stack)
    patience = Patience(
        seconds=settings.patience_seconds, tell=watcher.waiting, revive=databases.revive
    )
    store = await asyncio.to_thread(open_store, settings, databases, patience)
    stack.callback(store.close)
    coach, second = open_coaches(config.coach, settings, team, stack)
    watcher.starting("engines")
    engine = await _start_engine(config, settings, team, model, tokenizer, stack)
    return Services(
        team=team,
        model=model,
        problems=problems,
        tokenizer=tokenizer,
        engine=engine,
        sandbox=sandbox,
        coach=coach,
        second_coach=second,
        learner=_learner(model, settings, config),
        store=store,
        tracker=_tracker(config, settings, databases, patience),
        registry=MlflowRegistry(databases.mlflow, patience),
        watcher=watcher,
        desk=_desk(team, problems, settings),
        audit=_audit_of(store, stack),
    )


def _tracker(
    config: TrainConfig, settings: Settings, databases: "Databases", patience: Patience
) -> Tracker:
    tracker = MlflowTracker(databases.mlflow, settings.mlflow / "artifacts", patience)
    if "tensorboard" not in config.tracking.also:
        return tracker
    return WithTensorBoard(tracker, settings.home / "tensorboard")


def _learner(model: str, settings: Settings, config: TrainConfig) -> Learner:
    if config.learner.backend == "deepspeed":
        try:
            from mappa_core.adapters.deepspeed_learner import DeepspeedLearner
        except ImportError as error:
            raise ConfigError(
                f"learner.backend=deepspeed needs the package {error.name}: install "
                "requirements/gpu.lock, or set learner.backend=torch"
            ) from error
        return DeepspeedLearner(model, settings.checkpoints, config.learner)
    from mappa_core.adapters.torch_learner import TorchLearner

    return TorchLearner(model, settings.checkpoints, config.learner)


def _audit_of(store: PostgresStore, stack: AsyncExitStack) -> PostgresAudit:
    audit = PostgresAudit.beside(store)
    stack.callback(audit.close)
    return audit


def _desk(team: Team, problems: ProblemSource, settings: Settings) -> "Desk | None":
    """What a team works with that hands on files.

    Raises:
        ConfigError: The team needs tasks with files and these problems have none, or the reverse.
    """
    works_on_files = any(agent.makes for agent in team.agents)
    if works_on_files != isinstance(problems, TaskSource):
        kind = "files" if works_on_files else "answers"
        sources = "tabular or dsbench" if works_on_files else "arithmetic or json"
        raise ConfigError(f"team {team.name} works on {kind}: set problems.source to {sources}")
    if not isinstance(problems, TaskSource):
        return None
    from mappa_core.steps import Desk

    return Desk(tasks=problems, workspaces=SnapshotWorkspaces(settings.workspaces))


def check_space(directory: Path, spare_bytes: int = SPARE_BYTES) -> None:
    """Refuse to start on a disk that will fill up half way.

    Raises:
        DiskFull: Less than `spare_bytes` are free where `directory` lies or will lie.
    """
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < spare_bytes:
        raise DiskFull(
            f"{existing} has {free / 2**30:.1f} GiB free and a run needs {spare_bytes / 2**30:.0f}:"
            " make room, or point MAPPA_HOME at a larger disk"
        )


def check_inputs(config: TrainConfig, settings: Settings) -> Team:
    """Refuse what the user can mend, before anything is written; returns the team.

    Raises:
        UserError: Unknown team or prompts, overlapping problem sets, no such model, no GPU where
            one is asked for by name.
        DiskFull: Too little space for a run.
    """
    team = load_team(config.team, config.prompts)
    _desk(team, problem_source(config.problems), settings)
    check_coach(config.coach, settings, team)
    if config.coach.second.share:
        check_coach(config.coach.second, settings, team)
    check_space(settings.home)
    from mappa_core.adapters.huggingface.device import resolve_device
    from mappa_core.adapters.huggingface.models import resolve_model

    resolve_model(config.model, settings.models)
    for device in (config.engine.device, config.learner.device):
        resolve_device(device)
    return team


def check_coach(config: CoachModelConfig, settings: Settings, team: Team) -> RubricSet | None:
    """Refuse a coach that could not answer; returns its rubrics, None for the rule coach.

    Raises:
        ConfigError: A key, a rubric set or an agent's rubric is missing.
    """
    if config.backend == "rule":
        return None
    missing = {
        "gemini": settings.google_api_key is None and "GOOGLE_API_KEY",
        "vertex": settings.vertex_project is None and "VERTEX_PROJECT",
        "anthropic": settings.anthropic_api_key is None and "ANTHROPIC_API_KEY",
        # A server of one's own asks for no key.
        "openai": settings.openai_api_key is None and not config.base_url and "OPENAI_API_KEY",
    }[config.backend]
    if missing:
        raise ConfigError(f"coach backend {config.backend} needs {missing} in the environment")
    rubrics = load_rubrics(team.name, config.rubric)
    without = [agent.name for agent in team.agents if agent.name not in rubrics.rubrics]
    if without:
        raise ConfigError(f"rubric set {rubrics.name} has no file for {', '.join(without)}")
    return rubrics


def open_coaches(
    config: CoachConfig, settings: Settings, team: Team, stack: AsyncExitStack
) -> tuple[Coach, Coach | None]:
    """The coach and, where a share of the actions is to have one, the second coach.

    Raises:
        ConfigError: As `check_coach`.
    """
    budget = Budget(config.budget)
    coach = open_coach(config, settings, team, budget, stack)
    if not config.second.share:
        return coach, None
    return coach, open_coach(config.second, settings, team, budget, stack)


def open_coach(
    config: CoachModelConfig,
    settings: Settings,
    team: Team,
    budget: Budget,
    stack: AsyncExitStack,
) -> Coach:
    """One coach as configured; closed with `stack`.

    Raises:
        ConfigError: As `check_coach`.
    """
    rubrics = check_coach(config, settings, team)
    if rubrics is None:
        return RuleCoach()
    coach = LlmCoach(_provider(config, settings), rubrics, config, budget)
    stack.push_async_callback(coach.close)
    return coach


def _provider(config: CoachModelConfig, settings: Settings) -> Provider:
    """The provider's client; their libraries take a second each to import, so only on demand."""
    if config.backend == "openai":
        from mappa_core.adapters.llm_coach.openai_compatible import OpenAiProvider

        return OpenAiProvider(config, _secret(settings.openai_api_key))
    if config.backend == "anthropic":
        from mappa_core.adapters.llm_coach.anthropic_messages import AnthropicProvider

        return AnthropicProvider(config, _secret(settings.anthropic_api_key) or "")
    from mappa_core.adapters.llm_coach.gemini import gemini_provider, vertex_provider

    if config.backend == "gemini":
        return gemini_provider(config, _secret(settings.google_api_key) or "")
    return vertex_provider(
        config,
        settings.vertex_project or "",
        settings.vertex_location,
        settings.google_credentials,
    )


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


@dataclass(frozen=True, slots=True, kw_only=True)
class Databases:
    """Where the store and MLflow's records live."""

    store: str
    mlflow: str
    revive: Callable[[], None] | None
    """Starts the server again where it is ours."""


def open_store(settings: Settings, databases: Databases, patience: Patience) -> PostgresStore:
    """The store, migrated.

    An embedded or empty database is brought up to date; one somebody else owns is not touched.

    Raises:
        StoreError: Postgres is unreachable.
        SchemaMismatch: `MAPPA_DATABASE_URL` names a database of another version.
    """
    url = databases.store
    if settings.database_url is None or schema.current_revision(url) is None:
        schema.upgrade(url)
    return PostgresStore.open(url, patience)


@contextmanager
def opened_store(settings: Settings) -> Generator[PostgresStore]:
    """The store alone, for commands that only look."""
    with ExitStack() as stack:
        store = open_store(settings, _databases(settings, stack), Patience())
        stack.callback(store.close)
        yield store


@contextmanager
def opened_audit(settings: Settings, database: str | None = None) -> Generator[PostgresAudit]:
    """The audit's side of the store, or of another database that holds its views.

    Args:
        settings: Where the store is.
        database: Address of a database to read instead, e.g. of a restored dump; it is neither
            migrated nor written to.
    """
    with ExitStack() as stack:
        if database is None:
            store = open_store(settings, _databases(settings, stack), Patience())
            stack.callback(store.close)
            audit = PostgresAudit.beside(store)
        else:
            audit = PostgresAudit.open(database)
        stack.callback(audit.close)
        yield audit


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedCoach:
    """A coach that is questioned before it trains anybody."""

    coach: Coach
    turned_round: Coach | None = None
    """The same with its rubric in the opposite order; None where it has none."""
    rubrics: RubricSet | None = None


@asynccontextmanager
async def opened_coach(config: TrainConfig, settings: Settings) -> AsyncGenerator[ProbedCoach]:
    """The coach of a configuration alone, for who only asks it.

    Raises:
        ConfigError: As `check_coach`.
    """
    team = load_team(config.team, config.prompts)
    rubrics = check_coach(config.coach, settings, team)
    budget = Budget(config.coach.budget)
    async with AsyncExitStack() as stack:
        coach = open_coach(config.coach, settings, team, budget, stack)
        if rubrics is None:
            yield ProbedCoach(coach=coach)
            return
        other = LlmCoach(
            _provider(config.coach, settings), turned_round(rubrics), config.coach, budget
        )
        stack.push_async_callback(other.close)
        yield ProbedCoach(coach=coach, turned_round=other, rubrics=rubrics)


def database_url(settings: Settings) -> str:
    """The address of the store's database as psql reads it; an embedded server is left running.

    Raises:
        StoreError: Postgres is unreachable.
    """
    if settings.database_url is not None:
        return for_psql(settings.database_url)
    embedded = start_embedded(settings.postgres)
    url = embedded.url("mappa")
    schema.upgrade(url)
    embedded.leave_running()
    return for_psql(url)


@contextmanager
def opened_mlflow(settings: Settings) -> Generator[str]:
    """The address of MLflow's records; an embedded server runs as long as the block."""
    with ExitStack() as stack:
        yield _databases(settings, stack).mlflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What is known about runs, for who decides about them afterwards."""

    store: Store
    audit: AuditStore
    registry: ModelRegistry


@contextmanager
def opened_records(settings: Settings) -> Generator[Records]:
    """The store, its audit and the model registry, without engines or models."""
    with ExitStack() as stack:
        databases = _databases(settings, stack)
        store = open_store(settings, databases, Patience())
        stack.callback(store.close)
        audit = PostgresAudit.beside(store)
        stack.callback(audit.close)
        yield Records(store=store, audit=audit, registry=MlflowRegistry(databases.mlflow))


def upgrade_database(settings: Settings) -> tuple[str | None, str | None]:
    """Bring the schema up to date; returns the revision before and after."""
    with ExitStack() as stack:
        url = _databases(settings, stack).store
        before = schema.current_revision(url)
        schema.upgrade(url)
        return before, schema.current_revision(url)


def backup_database(settings: Settings, file: Path) -> None:
    """Write the store to one file; see `adapters.store.backup`."""
    with ExitStack() as stack:
        backup.backup(_databases(settings, stack).store, file)


def restore_database(settings: Settings, file: Path) -> None:
    """Fill an empty store with a backup; see `adapters.store.backup`."""
    with ExitStack() as stack:
        backup.restore(_databases(settings, stack).store, file)


def vacuum_database(settings: Settings) -> None:
    """Give the store's free space back; see `adapters.store.backup`."""
    with ExitStack() as stack:
        backup.vacuum(_databases(settings, stack).store)


def _databases(settings: Settings, stack: AsyncExitStack | ExitStack) -> Databases:
    if settings.database_url is not None:
        url, mlflow, revive = (
            settings.database_url,
            f"sqlite:///{settings.mlflow / 'mlflow.db'}",
            None,
        )
    else:
        embedded = start_embedded(settings.postgres)
        stack.callback(embedded.close)
        url, mlflow, revive = embedded.url("mappa"), embedded.url("mlflow"), embedded.revive
    tracking_uri = settings.mlflow_tracking_uri or mlflow
    return Databases(store=url, mlflow=tracking_uri, revive=revive)


def ping_store(settings: Settings, stack: ExitStack) -> str:
    """What answers at the store's address, e.g. `PostgreSQL 18.4`."""
    return f"PostgreSQL {ping(_databases(settings, stack).store)}"


async def sandbox_tier(settings: Settings) -> str:
    """The isolation that `auto` takes on this machine, by trying it."""
    sandbox = await choose_sandbox(
        "auto", 1, fusion_url=settings.sandboxfusion_url, image=settings.sandbox_image
    )
    await sandbox.close()
    return sandbox.tier


async def _start_engine(
    config: TrainConfig,
    settings: Settings,
    team: Team,
    model: str,
    tokenizer: "ChatTokenizer",
    stack: AsyncExitStack,
) -> Engine:
    agents = tuple(agent.name for agent in team.agents)
    if config.engine.backend == "transformers":
        from mappa_core.adapters.transformers_engine.engine import TransformersEngine

        engine: Engine = TransformersEngine(model, config.engine, tokenizer.end_token_ids)
    else:
        from mappa_core.adapters.vllm.engine import VllmEngine
        from mappa_core.adapters.vllm.server import open_zygote

        engine = VllmEngine(
            model=model,
            agents=agents,
            config=_serving_whole_models(config),
            end_token_ids=tokenizer.end_token_ids,
            work_directory=settings.home / "engine",
            zygote=_zygote.get() or open_zygote(config.engine, settings.logs),
            lora_rank=config.learner.lora.rank,
        )
    stack.push_async_callback(engine.close)
    await engine.start()
    return engine


def _serving_whole_models(config: TrainConfig) -> EngineConfig:
    """Whole weights need a server per agent on every device; an adapter needs none."""
    if config.learner.weights == "lora":
        return config.engine
    return config.engine.model_copy(update={"serving": "merged"})


def code_version() -> str:
    """The package's version, and the commit where it runs from a checkout."""
    package = version("mappa")
    checkout = Path(__file__).parents[1]
    if not (checkout / ".git").exists():
        return package
    described = subprocess.run(
        ["git", "-C", str(checkout), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{package}+{described.stdout.strip()}" if described.returncode == 0 else package
