"""The engine, and the process that is warmed for it."""

from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.protocols import Engine
from mappa_core.rollout.teams.base import Team

if TYPE_CHECKING:
    from mappa_core.models.tokenizer import ChatTokenizer
    from mappa_core.rollout.engines.vllm.server import ForkServer


_fork_server: ContextVar["ForkServer | None"] = ContextVar("fork_server", default=None)


@contextmanager
def warming(config: TrainConfig, settings: Settings) -> Generator[None]:
    """Begin what takes longest in opening the services, beside all that comes before them."""
    if config.engine.backend != "vllm":
        yield
        return
    from mappa_core.rollout.engines.vllm.server import open_fork_server

    fork_server = open_fork_server(config.engine, settings.logs)
    fork_server.start()
    token = _fork_server.set(fork_server)
    try:
        yield
    finally:
        _fork_server.reset(token)
        fork_server.close()


def check_engine(config: TrainConfig) -> None:
    """Refuse a way of weights into the servers that there is not.

    Raises:
        ConfigError: No whole weights are served, or there is no GPU for them to go through.
    """
    from mappa_core.models.device import resolve_device

    device = resolve_device(config.engine.device)
    sync, engine = config.engine.weight_sync, _serving_whole_models(config)
    if sync == "reload":
        return
    whole = ("merged", "auto") if device == "cpu" else ("merged",)
    if engine.backend != "vllm" or engine.serving not in whole:
        raise ConfigError(
            f"engine.weight_sync={sync} sends whole weights to vLLM, and none are served: set "
            "engine.backend=vllm and engine.serving=merged, or leave it at reload"
        )
    if device == "cpu":
        raise ConfigError(
            f"engine.weight_sync={sync} goes through a GPU's memory: on a CPU leave it at reload"
        )


async def start_engine(
    config: TrainConfig,
    settings: Settings,
    team: Team,
    model: str,
    tokenizer: "ChatTokenizer",
    stack: AsyncExitStack,
) -> Engine:
    """The engine as configured, ready to serve; closed with `stack`.

    Raises:
        ConfigError: As `check_engine`.
        EngineError: It does not start.
    """
    check_engine(config)
    agents = tuple(agent.name for agent in team.agents)
    if config.engine.backend == "transformers":
        from mappa_core.rollout.engines.transformers.engine import TransformersEngine

        engine: Engine = TransformersEngine(model, config.engine, tokenizer.end_token_ids)
    else:
        from mappa_core.rollout.engines.vllm.engine import VllmEngine
        from mappa_core.rollout.engines.vllm.server import open_fork_server

        engine = VllmEngine(
            model=model,
            agents=agents,
            config=_serving_whole_models(config),
            end_token_ids=tokenizer.end_token_ids,
            work_directory=settings.home / "engine",
            fork_server=_fork_server.get() or open_fork_server(config.engine, settings.logs),
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
