"""The engine, and the process that is warmed for it."""

from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from mappa_core.config import EngineConfig, TrainConfig
from mappa_core.ports import (
    Engine,
)
from mappa_core.settings import Settings
from mappa_core.teams.base import Team

if TYPE_CHECKING:
    from mappa_core.adapters.huggingface.tokenizer import ChatTokenizer
    from mappa_core.adapters.vllm.server import Zygote


_zygote: ContextVar["Zygote | None"] = ContextVar("zygote", default=None)


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
        EngineError: It does not start.
    """
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
