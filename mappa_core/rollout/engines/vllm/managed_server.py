"""A vLLM server, the policies loaded in it, and bringing both back when the server dies."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.core.text import counted
from mappa_core.models.serving.client import ServerDied
from mappa_core.models.serving.server import OwnServer
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import check_served
from mappa_core.rollout.engines.vllm.completions import completed, completion_body
from mappa_core.rollout.engines.vllm.read_write_lock import ReadWriteLock
from mappa_core.rollout.engines.vllm.weight_loaders import WeightLoader, WeightsUnchanged

T = TypeVar("T")

_log = logging.getLogger(__name__)


class ManagedServer:
    """Keeps one server alive, with the policies of the agents that it serves."""

    def __init__(
        self,
        server: OwnServer,
        loader: WeightLoader,
        *,
        end_token_ids: tuple[int, ...],
        config: EngineConfig,
    ) -> None:
        self._server = server
        self._loader = loader
        self._end_token_ids = end_token_ids
        self._config = config
        self._weights_lock = ReadWriteLock()
        self._loaded: dict[str, PolicyVersion] = {}
        # Whether the server has what `_loaded` says; where not, it is to be restarted first.
        self._consistent = True
        self._generation = 0
        self._restarts_left = config.restarts

    async def start(self) -> None:
        """Bring the server up, with the base weights."""
        try:
            await self._server.start(self._config.start_seconds)
        except ServerDied as death:
            raise EngineError(f"a vLLM server died while it started: {death}") from death

    async def close(self) -> None:
        """Stop the server."""
        await self._server.stop()

    async def load(self, policy: PolicyVersion) -> None:
        """Serve `policy`; waits for the requests under way, and later ones wait for it.

        Raises:
            EngineError: It cannot be had; later requests find the old one, or a new server's.
        """
        await self._with_restarts(lambda: self._replace(policy))
        # A new policy is progress: what went wrong before it no longer counts.
        self._restarts_left = self._config.restarts

    async def sleep(self) -> None:
        """Leave the GPU's memory, weights to the CPU's; requests wait until `wake`."""
        await self._with_restarts(lambda: self._post_alone("/sleep?level=1"))

    async def wake(self) -> None:
        """Take the memory again; a server that died meanwhile is started anew."""
        generation = self._generation
        try:
            await self._post_alone("/wake_up")
        except ServerDied as death:
            await self._recover(generation, death)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample, as often as the server dies of something else."""

        async def sample() -> Completion:
            async with self._weights_lock.reading():
                return await self._sample(request)

        return await self._with_restarts(sample)

    async def _with_restarts(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, done again on a new server as often as one dies of it."""
        while True:
            generation = self._generation
            try:
                return await work()
            except ServerDied as death:
                await self._recover(generation, death)

    async def _recover(self, generation: int, death: ServerDied) -> None:
        """Restart the server once, however many requests saw it die."""
        async with self._weights_lock.writing():
            while self._generation == generation:
                if self._restarts_left == 0:
                    raise EngineError(
                        f"the vLLM server died {counted(self._config.restarts + 1, 'time')} "
                        f"({death}): read {self._server.log}; mappa train --resume goes on from "
                        "here"
                    ) from death
                self._restarts_left -= 1
                _log.warning("restarting a vLLM server that died (%s): %s", death, self._server.log)
                try:
                    await self._restart()
                except ServerDied as again:
                    death = again

    async def _restart(self) -> None:
        async with self._changing_weights():
            await self._server.stop()
            await self._server.start(self._config.start_seconds)
            for policy in self._loaded.values():
                await self._loader.load(self._server, policy, None)
        self._generation += 1

    async def _replace(self, policy: PolicyVersion) -> None:
        async with self._weights_lock.writing():
            self._check_consistent()
            old = self._loaded.get(policy.agent)
            if old is not None and old.id == policy.id:
                return
            async with self._changing_weights(harmless=WeightsUnchanged):
                await self._loader.load(self._server, policy, old)
                self._loaded[policy.agent] = policy

    async def _post_alone(self, path: str) -> None:
        async with self._weights_lock.writing():
            self._check_consistent()
            await self._server.post(path, {})

    @asynccontextmanager
    async def _changing_weights(
        self, *, harmless: type[EngineError] | tuple[()] = ()
    ) -> AsyncGenerator[None]:
        """Inside, weights change: to the end, or the server is stopped until it is restarted.

        An error or a cancellation at any `await` may leave it with weights that are not those of
        `_loaded`, and what they sample would be recorded as that policy's.
        """
        self._consistent = False
        try:
            yield
        except harmless:
            self._consistent = True
            raise
        except BaseException:
            await self._server.stop()
            raise
        self._consistent = True

    def _check_consistent(self) -> None:
        if not self._consistent:
            raise ServerDied("stopped half way through a change of weights")

    async def _sample(self, request: GenerationRequest) -> Completion:
        check_served(request.policy, self._loaded.get(request.policy.agent))
        self._check_consistent()
        body = completion_body(
            request,
            model=self._loader.model_name(request.policy),
            end_token_ids=self._end_token_ids,
            max_model_length=self._config.max_model_length,
        )
        return await completed(self._server, body)
