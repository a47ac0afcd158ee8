"""`mappa bench rollout`: tokens/s of whole rollouts over the bare engine's, same requests."""

import asyncio
import time
from collections.abc import Sequence

from mappa_cli.benches.metering import Meter, metered, on_training
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.app.config import TrainConfig
from mappa_core.app.runs import prepare_run, stored_run
from mappa_core.core.records.episodes import Completion, GenerationRequest
from mappa_core.core.settings import Settings
from mappa_core.rollout.protocols import Engine

AIM = 0.9


def bench_rollout(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Play a rollout to warm up and one to measure, then send its requests to the bare engine."""
    return on_training(_measured, overrides, settings)


async def _measured(config: TrainConfig, settings: Settings) -> BenchReport:
    from flows.rollout import rollout

    meter = Meter()
    async with metered(config, settings, meter) as port:
        stored = await asyncio.to_thread(stored_run, port, config, None)
        run = await asyncio.to_thread(prepare_run, port, stored, config)
        await rollout(run.id, "train", 1, 0, config)  # warms the engine up
        meter.generations.clear()
        started = time.perf_counter()
        episodes = await rollout(run.id, "train", 2, 0, config)
        whole = meter.tokens() / (time.perf_counter() - started)
        bare = await _bare_tokens_per_second(port.engine, tuple(meter.generations), config)
    return BenchReport(
        bench="rollout",
        figures=(
            Figure(name="episodes", value=episodes, unit="episodes"),
            Figure(name="tokens sampled", value=meter.tokens(), unit="tokens"),
            Figure(name="whole rollout", value=whole, unit="tokens/s"),
            Figure(name="bare engine, same requests", value=bare, unit="tokens/s"),
            aimed("whole over bare", whole / bare, "ratio", at_least=AIM),
        ),
    )


async def _bare_tokens_per_second(
    engine: Engine, generations: Sequence[tuple[GenerationRequest, Completion]], config: TrainConfig
) -> float:
    """The same requests, agent by agent and as many in flight, straight to the engine.

    Each policy is loaded again first, so that no prompt is in a prefix cache that was not there
    when the rollout generated.
    """
    seconds, tokens = 0.0, 0
    in_flight = asyncio.Semaphore(config.rollout.concurrency)

    async def one(request: GenerationRequest) -> int:
        async with in_flight:
            return len((await engine.generate(request)).token_ids)

    for agent in dict.fromkeys(request.policy.agent for request, _ in generations):
        requests = [request for request, _ in generations if request.policy.agent == agent]
        await engine.load(requests[0].policy)
        started = time.perf_counter()
        tokens += sum(await asyncio.gather(*(one(request) for request in requests)))
        seconds += time.perf_counter() - started
    return tokens / seconds
