"""When the outside systems were busy: ports that write it down."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from mappa_cli.benches.report import BenchReport
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.services import Services, open_services, use
from mappa_core.coach.protocols import Coach
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    CoachScore,
    ScoredAction,
    Unscored,
)
from mappa_core.core.records.tools import Limits, ToolResult
from mappa_core.core.records.updates import TrainingSample, UpdateReport
from mappa_core.core.settings import Settings
from mappa_core.rollout.protocols import Engine, Sandbox
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.protocols import Learner


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


@asynccontextmanager
async def metered(
    config: TrainConfig, settings: Settings, meter: Meter
) -> AsyncGenerator[Services]:
    """The services of a configuration, all metered but the one that is yielded."""
    async with open_services(config, settings) as port:
        watched = replace(
            port,
            engine=MeteredEngine(port.engine, meter),
            sandbox=MeteredSandbox(port.sandbox, meter),
            coach=MeteredCoach(port.coach, meter),
            learner=port.learner and MeteredLearner(port.learner, meter),
        )
        with use(watched):
            yield port


def on_training(
    measure: Callable[[TrainConfig, Settings], Coroutine[object, object, BenchReport]],
    overrides: Sequence[str],
    settings: Settings,
) -> BenchReport:
    """Let `measure` run on two iterations of the quickstart, with `overrides`."""
    from mappa_cli.servers import prefect_server

    config = load_config(None, ("name=bench", "rollout.iterations=2", *overrides))
    with prefect_server(settings):
        return asyncio.run(measure(config, settings))
