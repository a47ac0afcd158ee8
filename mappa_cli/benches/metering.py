"""Writes down when engine, sandbox, coach and learner are busy, for the benches of training."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import ParamSpec, TypeVar, cast

from mappa_cli.benches.report import BenchReport
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.services import Services, open_services, use
from mappa_core.core.records.episodes import Completion, GenerationRequest
from mappa_core.core.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Meter:
    """When the outside systems were busy, and what the engine generated."""

    busy: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    generations: list[tuple[GenerationRequest, Completion]] = field(
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

    def timed(self, method: Callable[P, T]) -> Callable[P, T]:
        """`method`, its time counted as busy."""

        @wraps(method)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> object:
            with self.running():
                return await cast("Awaitable[object]", method(*args, **kwargs))

        @wraps(method)
        def called(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.running():
                return method(*args, **kwargs)

        return cast("Callable[P, T]", awaited) if iscoroutinefunction(method) else called

    async def generated(
        self,
        generate: Callable[[GenerationRequest], Awaitable[Completion]],
        request: GenerationRequest,
    ) -> Completion:
        """What `generate` answers to `request`, with both written down."""
        with self.running():
            completion = await generate(request)
        self.generations.append((request, completion))
        return completion

    def busy_seconds(self) -> float:
        """Length of the union of all busy intervals."""
        total, reached = 0.0, float("-inf")
        for started, ended in sorted(self.busy):
            total += max(0.0, ended - max(started, reached))
            reached = max(reached, ended)
        return total

    def tokens(self) -> int:
        """Tokens sampled."""
        return sum(len(completion.token_ids) for _, completion in self.generations)


class _WithMethods:
    """An adapter with some of its methods replaced."""

    def __init__(self, adapter: object, methods: dict[str, object]) -> None:
        self._adapter = adapter
        self._methods = methods

    def __getattr__(self, name: str) -> object:
        return self._methods.get(name) or getattr(self._adapter, name)


def with_methods(adapter: T, **methods: object) -> T:
    """`adapter` with some of its methods replaced, by name."""
    return cast("T", _WithMethods(adapter, methods))


@asynccontextmanager
async def metered(
    config: TrainConfig, settings: Settings, meter: Meter
) -> AsyncGenerator[Services]:
    """Open the services of a configuration, all metered but the one that is yielded."""
    async with open_services(config, settings) as port:
        engine, learner, timed = port.engine, port.learner, meter.timed
        watched = replace(
            port,
            engine=with_methods(
                engine,
                load=timed(engine.load),
                generate=partial(meter.generated, engine.generate),
            ),
            sandbox=with_methods(port.sandbox, run=timed(port.sandbox.run)),
            coach=with_methods(port.coach, score=timed(port.scoring_coach.score)),
            learner=learner
            and with_methods(
                learner, logprobs=timed(learner.logprobs), update=timed(learner.update)
            ),
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
