"""`mappa bench rollout`: tokens/s of whole rollouts over plain vLLM's, on the same requests.

rollout     engine behind its servers, sandbox, coach, store and Prefect
vLLM        its own Python API on all requests of an agent at once, when all else has ended
engine      ours without the rest of a rollout, on the same requests as vLLM
float32     vLLM's own in float32, where the engine is in another type
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from mappa_cli.benches.metering import Meter, metered, on_training
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.app.config import TrainConfig
from mappa_core.app.runs import prepare_run, stored_run
from mappa_core.app.services import Services
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Completion, GenerationRequest
from mappa_core.core.settings import Settings
from mappa_core.models.device import resolve_device, resolve_dtype
from mappa_core.rollout.engines.base import EngineSetup

if TYPE_CHECKING:
    from mappa_core.rollout.engines.vllm.plain import PlainBatch

AIM, ENGINE_AIM = 0.93, 1.6
Generation: TypeAlias = tuple[GenerationRequest, Completion]


def bench_rollout(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Play a rollout to warm up and one to measure, then give its requests to engines alone.

    Raises:
        ConfigError: The engine is not vLLM.
    """
    return on_training(_measured, overrides, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A rollout that was measured."""

    episodes: int
    seconds: float
    batches: tuple[Sequence[Generation], ...]
    """What its engine was asked for and sampled, by agent."""


async def _measured(config: TrainConfig, settings: Settings) -> BenchReport:
    backend = config.engine.backend
    if backend != "vllm":
        raise ConfigError(
            f"bench rollout compares with plain vLLM: leave engine.backend at vllm, not {backend}"
        )
    meter = Meter()
    async with metered(config, settings, meter) as port:
        played, setup = await _played(port, meter, config)
    from mappa_core.rollout.engines.vllm.plain import sample_plainly

    # Servers, sandbox and coach have ended: the cores are vLLM's alone.
    requests = [[request for request, _ in batch] for batch in played.batches]
    plain = await asyncio.to_thread(sample_plainly, setup, requests)
    figures = compared(played, plain)
    dtype = str(resolve_dtype(setup.config.dtype, resolve_device(setup.config.device)))
    if dtype == "torch.float32":
        absent = ("how much faster than float32 vLLM is: the engine is in float32 here",)
        return BenchReport(bench="rollout", figures=figures, absent=absent)
    alone = await _sample_alone(setup, requests)
    exact = replace(setup, config=setup.config.model_copy(update={"dtype": "float32"}))
    in_float32 = await asyncio.to_thread(sample_plainly, exact, requests)
    more = faster(plain, alone, in_float32, dtype)
    return BenchReport(bench="rollout", figures=(*figures, *more))


async def _played(port: Services, meter: Meter, config: TrainConfig) -> tuple[Played, EngineSetup]:
    """Play twice, the second time to be measured; also says what the engine was opened with."""
    from flows.rollout import rollout
    from mappa_core.rollout.engines.vllm.engine import VllmEngine

    assert isinstance(port.engine, VllmEngine)
    stored = await asyncio.to_thread(stored_run, port, config, None)
    run = await asyncio.to_thread(prepare_run, port, stored, config)
    await rollout(run.id, "train", 1, 0, config)  # warms the engine up
    meter.generations.clear()
    started = time.perf_counter()
    episodes = await rollout(run.id, "train", 2, 0, config)
    seconds = time.perf_counter() - started
    by_agent: dict[str, list[Generation]] = {}
    for each in meter.generations:
        by_agent.setdefault(each[0].policy.agent, []).append(each)
    played = Played(episodes=episodes, seconds=seconds, batches=tuple(by_agent.values()))
    return played, port.engine.setup


async def _sample_alone(
    setup: EngineSetup, batches: Sequence[Sequence[GenerationRequest]]
) -> tuple["PlainBatch", ...]:
    """Sample batches one after another from a new engine, each agent's from its own weights.

    As in plain vLLM nothing is done for the first time while it counts, and nothing of a prompt
    that counts is in a cache.
    """
    from mappa_core.rollout.engines.vllm.engine import open_engine
    from mappa_core.rollout.engines.vllm.plain import PlainBatch

    engine = open_engine(setup)
    await engine.start()
    try:
        for batch in batches:
            await engine.load(batch[0].policy)
            await asyncio.gather(*map(engine.generate, map(_backwards, batch)))
        made: list[PlainBatch] = []
        for batch in batches:
            started = time.perf_counter()
            answers = await asyncio.gather(*map(engine.generate, batch))
            seconds = time.perf_counter() - started
            tokens = tuple(answer.token_ids for answer in answers)
            made.append(PlainBatch(seconds=seconds, tokens=tokens))
    finally:
        await engine.close()
    return tuple(made)


def _backwards(request: GenerationRequest) -> GenerationRequest:
    """Make a request as long, whose prompt begins as none that counts does."""
    return replace(request, prompt_token_ids=request.prompt_token_ids[::-1])


def compared(played: Played, plain: Sequence["PlainBatch"]) -> tuple[Figure, ...]:
    """Compare a rollout with what plain vLLM made of its requests, batch by batch."""
    ours = [completion.token_ids for batch in played.batches for _, completion in batch]
    theirs = [tokens for batch in plain for tokens in batch.tokens]
    whole = sum(map(len, ours)) / played.seconds
    bare = _rate(plain)
    same = sum(one == other for one, other in zip(ours, theirs, strict=True)) / len(ours)
    return (
        Figure(name="episodes", value=played.episodes, unit="episodes"),
        Figure(name="tokens sampled", value=sum(map(len, ours)), unit="tokens"),
        Figure(name="whole rollout", value=whole, unit="tokens/s"),
        Figure(name="vLLM's own Python API, same requests", value=bare, unit="tokens/s"),
        Figure(name="requests that both answer with the same tokens", value=same, unit="share"),
        aimed("whole over vLLM's own", whole / bare, "ratio", at_least=AIM),
    )


def faster(
    plain: Sequence["PlainBatch"],
    engine: Sequence["PlainBatch"],
    in_float32: Sequence["PlainBatch"],
    dtype: str,
) -> tuple[Figure, ...]:
    """Compare plain vLLM in the engine's type, and the engine by itself, with it in float32."""
    exact = _rate(in_float32)
    name = dtype.removeprefix("torch.")
    return (
        Figure(name="our engine by itself", value=_rate(engine), unit="tokens/s"),
        Figure(name="vLLM's own Python API, in float32", value=exact, unit="tokens/s"),
        Figure(name=f"vLLM's own in {name} over float32", value=_rate(plain) / exact, unit="ratio"),
        aimed(
            "our engine over vLLM's own in float32",
            _rate(engine) / exact,
            "ratio",
            at_least=ENGINE_AIM,
        ),
    )


def _rate(batches: Sequence["PlainBatch"]) -> float:
    """Tokens sampled in a second."""
    tokens = sum(len(answer) for batch in batches for answer in batch.tokens)
    return tokens / sum(batch.seconds for batch in batches)
