"""`mappa bench`: figures as ratios within one run on this machine.

rollout         generated tokens/s of whole rollouts over the bare engine's, on the same requests
sandbox         what a run costs on each backend (`bench_sandbox`)
orchestration   share of the wall time in which engine, sandbox, coach and learner all rest
audit           `mappa audit` of a small run and of a million actions (`bench_audit`)
coach           the model coach's policy over the bare client and the ideal (`bench_coach`)
learner         tokens/s and memory of one update over TRL's (`bench_learner`)
"""

import asyncio
import os
import platform
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from mappa_core import bootstrap
from mappa_core.adapters.config_files import load_config
from mappa_core.bootstrap import Services, open_services
from mappa_core.config import AlgorithmConfig, TrainConfig
from mappa_core.domain.errors import ConfigError
from mappa_core.domain.records import (
    CoachCase,
    CoachIdentity,
    CoachScore,
    Completion,
    GenerationRequest,
    Limits,
    PolicyVersion,
    ScoredAction,
    ToolResult,
    TrainingSample,
    Unscored,
    UpdateReport,
)
from mappa_core.ports import Coach, Engine, Learner, Sandbox
from mappa_core.settings import Settings

ROLLOUT_AIM = 0.9
ORCHESTRATION_AIM = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number beside its aim."""

    name: str
    value: float
    unit: str
    aim: str | None = None
    met: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """What one bench measured."""

    bench: str
    machine: str
    figures: tuple[Figure, ...]

    def as_json(self) -> dict[str, str | list[dict[str, str | float | bool | None]]]:
        """The object that `--json` prints."""
        return {
            "bench": self.bench,
            "machine": self.machine,
            "figures": [
                {
                    "name": figure.name,
                    "value": figure.value,
                    "unit": figure.unit,
                    "aim": figure.aim,
                    "met": figure.met,
                }
                for figure in self.figures
            ],
        }


@dataclass(slots=True)
class Meter:
    """When the outside systems were busy, and what the engine was asked."""

    busy: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    asked: list[tuple[GenerationRequest, Completion]] = field(
        default_factory=list[tuple[GenerationRequest, Completion]]
    )

    @contextmanager
    def running(self) -> Generator[None]:
        """Count the block's time as busy."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.busy.append((started, time.perf_counter()))

    def busy_seconds(self) -> float:
        """Length of the union of all busy intervals."""
        total, reached = 0.0, float("-inf")
        for started, ended in sorted(self.busy):
            total += max(0.0, ended - max(started, reached))
            reached = max(reached, ended)
        return total

    def tokens(self) -> int:
        """Tokens sampled."""
        return sum(len(completion.token_ids) for _, completion in self.asked)


class MeteredEngine:
    """An engine, with its busy time written down."""

    def __init__(self, engine: Engine, meter: Meter) -> None:
        self._engine, self._meter = engine, meter

    async def start(self) -> None:
        """As the engine does."""
        await self._engine.start()

    async def close(self) -> None:
        """As the engine does."""
        await self._engine.close()

    async def load(self, policy: PolicyVersion) -> None:
        """As the engine does, metered."""
        with self._meter.running():
            await self._engine.load(policy)

    async def generate(self, request: GenerationRequest) -> Completion:
        """As the engine does, metered."""
        with self._meter.running():
            completion = await self._engine.generate(request)
        self._meter.asked.append((request, completion))
        return completion


class MeteredSandbox:
    """A sandbox, with its busy time written down."""

    def __init__(self, sandbox: Sandbox, meter: Meter) -> None:
        self._sandbox, self._meter = sandbox, meter

    @property
    def tier(self) -> str:
        """As the sandbox's."""
        return self._sandbox.tier

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        """As the sandbox does, metered."""
        with self._meter.running():
            return await self._sandbox.run(code, workspace, limits)

    async def close(self) -> None:
        """As the sandbox does."""
        await self._sandbox.close()


class MeteredCoach:
    """A coach, with its busy time written down."""

    def __init__(self, coach: Coach, meter: Meter) -> None:
        self._coach, self._meter = coach, meter

    @property
    def identity(self) -> CoachIdentity:
        """As the coach's."""
        return self._coach.identity

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """As the coach does, metered."""
        with self._meter.running():
            return await self._coach.score(case)


class MeteredLearner:
    """A learner, with its busy time written down."""

    def __init__(self, learner: Learner, meter: Meter) -> None:
        self._learner, self._meter = learner, meter

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """As the learner does, metered."""
        with self._meter.running():
            return self._learner.logprobs(policy, actions)

    def update(
        self,
        policy: PolicyVersion,
        samples: Sequence[TrainingSample],
        algorithm: AlgorithmConfig,
        *,
        total_steps: int,
        seed: int,
    ) -> UpdateReport:
        """As the learner does, metered."""
        with self._meter.running():
            return self._learner.update(
                policy, samples, algorithm, total_steps=total_steps, seed=seed
            )


def run_bench(name: str, overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Run one bench by name.

    Raises:
        ConfigError: There is no such bench.
    """
    benches: dict[str, Callable[[TrainConfig, Settings], Coroutine[object, object, BenchReport]]]
    benches = {"rollout": _bench_rollout, "orchestration": _bench_orchestration}
    if name == "store":
        from flows.bench_store import bench_store

        return bench_store(overrides, settings)
    if name == "learner":
        from flows.bench_learner import bench_learner

        return bench_learner(overrides, settings)
    if name == "audit":
        from flows.bench_audit import bench_audit

        return bench_audit(overrides, settings)
    if name == "coach":
        from flows.bench_coach import bench_coach

        return asyncio.run(bench_coach())
    if name == "sandbox":
        from flows.bench_sandbox import bench_sandbox

        return asyncio.run(bench_sandbox(settings))
    if name not in benches:
        names = ", ".join((*benches, "store", "coach", "sandbox", "learner", "audit"))
        raise ConfigError(f"there is no bench {name}: choose one of {names}")
    from flows.servers import prefect_server

    config = load_config(None, ("name=bench", "rollout.iterations=2", *overrides))
    with prefect_server(settings):
        return asyncio.run(benches[name](config, settings))


def machine() -> str:
    """The machine in words."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {platform.system()}"


@asynccontextmanager
async def _metered(
    config: TrainConfig, settings: Settings, meter: Meter
) -> AsyncGenerator[Services]:
    async with open_services(config, settings) as port:
        metered = replace(
            port,
            engine=MeteredEngine(port.engine, meter),
            sandbox=MeteredSandbox(port.sandbox, meter),
            coach=MeteredCoach(port.coach, meter),
            learner=MeteredLearner(port.learner, meter),
        )
        with bootstrap.use(metered):
            yield port


async def _bench_rollout(config: TrainConfig, settings: Settings) -> BenchReport:
    from flows.rollout import rollout
    from flows.train import open_run

    meter = Meter()
    async with _metered(config, settings, meter) as port:
        run = await asyncio.to_thread(open_run, config, None)
        await rollout(run.id, "train", 1, 0, config)  # warms the engine up
        meter.asked.clear()
        started = time.perf_counter()
        episodes = await rollout(run.id, "train", 2, 0, config)
        whole = meter.tokens() / (time.perf_counter() - started)
        bare = await _bare_tokens_per_second(port.engine, tuple(meter.asked), config)
    ratio = whole / bare
    return BenchReport(
        bench="rollout",
        machine=machine(),
        figures=(
            Figure(name="episodes", value=episodes, unit="episodes"),
            Figure(name="tokens sampled", value=meter.tokens(), unit="tokens"),
            Figure(name="whole rollout", value=whole, unit="tokens/s"),
            Figure(name="bare engine, same requests", value=bare, unit="tokens/s"),
            Figure(
                name="whole over bare",
                value=ratio,
                unit="ratio",
                aim=f">= {ROLLOUT_AIM}",
                met=ratio >= ROLLOUT_AIM,
            ),
        ),
    )


async def _bare_tokens_per_second(
    engine: Engine, asked: Sequence[tuple[GenerationRequest, Completion]], config: TrainConfig
) -> float:
    """The same requests, agent by agent and as many in flight, straight to the engine.

    Each policy is loaded again first, so that no prompt is in a prefix cache that was not there
    when the rollout asked.
    """
    seconds, tokens = 0.0, 0
    slots = asyncio.Semaphore(config.rollout.concurrency)

    async def one(request: GenerationRequest) -> int:
        async with slots:
            return len((await engine.generate(request)).token_ids)

    for agent in dict.fromkeys(request.policy.agent for request, _ in asked):
        requests = [request for request, _ in asked if request.policy.agent == agent]
        await engine.load(requests[0].policy)
        started = time.perf_counter()
        tokens += sum(await asyncio.gather(*(one(request) for request in requests)))
        seconds += time.perf_counter() - started
    return tokens / seconds


async def _bench_orchestration(config: TrainConfig, settings: Settings) -> BenchReport:
    from flows.train import train

    meter = Meter()
    async with _metered(config, settings, meter):
        started = time.perf_counter()
        await train(config)
        wall = time.perf_counter() - started
    outside = 1 - meter.busy_seconds() / wall
    return BenchReport(
        bench="orchestration",
        machine=machine(),
        figures=(
            Figure(name="wall time", value=wall, unit="s"),
            Figure(
                name="engine, sandbox, coach or learner busy", value=wall * (1 - outside), unit="s"
            ),
            Figure(
                name="outside of them",
                value=outside,
                unit="share",
                aim=f"< {ORCHESTRATION_AIM}",
                met=outside < ORCHESTRATION_AIM,
            ),
        ),
    )
