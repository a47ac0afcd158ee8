"""The one place that chooses adapters.

    async with open_services(config, settings) as services:   real ones, as configured
    with use(services):                                       anything else, in tests

Order matters when something is wrong: what the user can mend is checked before anything is
written (problems, model, sandbox), then the database, then what takes long (engines).
"""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from mappa_core.adapters.huggingface.models import resolve_model
from mappa_core.adapters.huggingface.tokenizer import ChatTokenizer
from mappa_core.adapters.mlflow.registry import MlflowRegistry
from mappa_core.adapters.mlflow.tracker import MlflowTracker
from mappa_core.adapters.problems import problem_source
from mappa_core.adapters.rule_coach.coach import RuleCoach
from mappa_core.adapters.sandboxes.choose import choose_sandbox
from mappa_core.adapters.store import schema
from mappa_core.adapters.store.auditing import PostgresAudit
from mappa_core.adapters.store.connection import for_psql, ping
from mappa_core.adapters.store.embedded import start_embedded
from mappa_core.adapters.store.store import PostgresStore
from mappa_core.adapters.torch_learner import TorchLearner
from mappa_core.adapters.transformers_engine.engine import TransformersEngine
from mappa_core.adapters.vllm.engine import VllmEngine
from mappa_core.adapters.watchers import LogWatcher
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import DiskFull
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
    Tracker,
    Watcher,
)
from mappa_core.settings import Settings
from mappa_core.teams import load_team
from mappa_core.teams.base import Team

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
    audit: AuditStore | None = None
    """Watches the coach during training; None for no watch."""


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
    """Tell `watcher` what happens inside the block; without one, it is logged."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


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
    watcher = _watcher.get() or LogWatcher()
    team = load_team(config.team, config.prompts)
    problems = problem_source(config.problems)
    check_space(settings.home)
    watcher.starting("model")
    model = str(await asyncio.to_thread(resolve_model, config.model, settings.models))
    tokenizer = await asyncio.to_thread(ChatTokenizer, model)
    watcher.starting("sandbox")
    sandbox = await choose_sandbox(config.sandbox.backend, config.sandbox.concurrency)
    stack.push_async_callback(sandbox.close)
    watcher.starting("database")
    store, mlflow_uri = await asyncio.to_thread(open_store, settings, stack)
    watcher.starting("engines")
    engine = await _start_engine(config, settings, team, model, tokenizer, stack)
    return Services(
        team=team,
        model=model,
        problems=problems,
        tokenizer=tokenizer,
        engine=engine,
        sandbox=sandbox,
        coach=coach_of(config),
        learner=TorchLearner(model, settings.checkpoints, config.learner),
        store=store,
        tracker=MlflowTracker(mlflow_uri, settings.mlflow / "artifacts"),
        registry=MlflowRegistry(mlflow_uri),
        watcher=watcher,
        audit=_audit_of(store, stack),
    )


def _audit_of(store: PostgresStore, stack: AsyncExitStack) -> PostgresAudit:
    audit = PostgresAudit.beside(store)
    stack.callback(audit.close)
    return audit


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
        UserError: Unknown team or prompts, overlapping problem sets, no such model.
        DiskFull: Too little space for a run.
    """
    team = load_team(config.team, config.prompts)
    problem_source(config.problems)
    check_space(settings.home)
    resolve_model(config.model, settings.models)
    return team


def open_store(settings: Settings, stack: AsyncExitStack | ExitStack) -> tuple[PostgresStore, str]:
    """The store, migrated, and the address MLflow's records live at; closed with `stack`.

    An embedded or empty database is brought up to date; one somebody else owns is not touched.

    Raises:
        StoreError: Postgres is unreachable.
        SchemaMismatch: `MAPPA_DATABASE_URL` names a database of another version.
    """
    url, mlflow_uri = _addresses(settings, stack)
    if settings.database_url is None or schema.current_revision(url) is None:
        schema.upgrade(url)
    store = PostgresStore.open(url)
    stack.callback(store.close)
    return store, mlflow_uri


@contextmanager
def opened_store(settings: Settings) -> Generator[PostgresStore]:
    """The store alone, for commands that only look."""
    with ExitStack() as stack:
        yield open_store(settings, stack)[0]


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
            audit = PostgresAudit.beside(open_store(settings, stack)[0])
        else:
            audit = PostgresAudit.open(database)
        stack.callback(audit.close)
        yield audit


def coach_of(config: TrainConfig) -> Coach:
    """The coach that a configuration asks for."""
    del config
    return RuleCoach()


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
        yield _addresses(settings, stack)[1]


def upgrade_database(settings: Settings) -> tuple[str | None, str | None]:
    """Bring the schema up to date; returns the revision before and after."""
    with ExitStack() as stack:
        url, _ = _addresses(settings, stack)
        before = schema.current_revision(url)
        schema.upgrade(url)
        return before, schema.current_revision(url)


def _addresses(settings: Settings, stack: AsyncExitStack | ExitStack) -> tuple[str, str]:
    if settings.database_url is not None:
        url = settings.database_url
        mlflow_uri = f"sqlite:///{settings.mlflow / 'mlflow.db'}"
    else:
        embedded = start_embedded(settings.postgres)
        stack.callback(embedded.close)
        url, mlflow_uri = embedded.url("mappa"), embedded.url("mlflow")
    return url, settings.mlflow_tracking_uri or mlflow_uri


def ping_store(settings: Settings, stack: ExitStack) -> str:
    """What answers at the store's address, e.g. `PostgreSQL 18.4`."""
    return f"PostgreSQL {ping(_addresses(settings, stack)[0])}"


async def sandbox_tier() -> str:
    """The strongest isolation this machine offers, by trying it."""
    sandbox = await choose_sandbox("auto", 1)
    await sandbox.close()
    return sandbox.tier


async def _start_engine(
    config: TrainConfig,
    settings: Settings,
    team: Team,
    model: str,
    tokenizer: ChatTokenizer,
    stack: AsyncExitStack,
) -> Engine:
    agents = tuple(agent.name for agent in team.agents)
    if config.engine.backend == "transformers":
        engine: Engine = TransformersEngine(model, config.engine, tokenizer.end_token_ids)
    else:
        engine = VllmEngine(
            model=model,
            agents=agents,
            config=config.engine,
            end_token_ids=tokenizer.end_token_ids,
            work_directory=settings.home / "engine",
            log_directory=settings.logs,
            lora_rank=config.learner.lora.rank,
        )
    stack.push_async_callback(engine.close)
    await engine.start()
    return engine


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
