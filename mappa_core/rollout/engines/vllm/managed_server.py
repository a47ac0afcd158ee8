"""A server, the policies loaded in it, and bringing both back when the server dies."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import (
    Completion,
    FinishReason,
    GenerationRequest,
    PolicyVersion,
)
from mappa_core.core.text import counted
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.vllm.gate import Gate
from mappa_core.rollout.engines.vllm.server import Server, ServerDied
from mappa_core.rollout.engines.vllm.serving import Serving, Untouched

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Slot:
    """One server and who is served from it."""

    def __init__(
        self,
        server: Server,
        serving: Serving,
        *,
        end_token_ids: tuple[int, ...],
        config: EngineConfig,
    ) -> None:
        self._server = server
        self._serving = serving
        self._end_token_ids = end_token_ids
        self._config = config
        self._gate = Gate()
        self._loaded: dict[str, PolicyVersion] = {}
        # Whether the server has what `_loaded` says; where not, it is to be revived first.
        self._whole = True
        self._lives = 0
        self._restarts_left = config.restarts

    async def start(self) -> None:
        """Bring the server up, with the base weights."""
        await self._server.start(self._config.start_seconds)

    async def close(self) -> None:
        """Stop the server."""
        await self._server.stop()

    async def load(self, policy: PolicyVersion) -> None:
        """Serve `policy`; waits for the requests under way, and later ones wait for it.

        Raises:
            EngineError: It cannot be had; later requests find the old one, or a new server's.
        """
        await self._surviving(lambda: self._replace(policy))
        # A new policy is progress: what went wrong before it no longer counts.
        self._restarts_left = self._config.restarts

    async def sleep(self) -> None:
        """Leave the GPU's memory, weights to the CPU's; requests wait until `wake`."""
        await self._surviving(lambda: self._order("/sleep?level=1"))

    async def wake(self) -> None:
        """Take the memory again; a server that died meanwhile is started anew."""
        life = self._lives
        try:
            await self._order("/wake_up")
        except ServerDied as death:
            await self._revive(life, death)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample, as often as the server dies of something else."""

        async def sample() -> Completion:
            async with self._gate.request():
                return await self._sample(request)

        return await self._surviving(sample)

    async def _surviving(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, done again on a new server as often as one dies of it."""
        while True:
            life = self._lives
            try:
                return await work()
            except ServerDied as death:
                await self._revive(life, death)

    async def _revive(self, life: int, death: ServerDied) -> None:
        """Restart the server once, however many requests saw it die."""
        async with self._gate.change():
            while self._lives == life:
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
                await self._serving.load(self._server, policy, None)
        self._lives += 1

    async def _replace(self, policy: PolicyVersion) -> None:
        async with self._gate.change():
            self._check_whole()
            old = self._loaded.get(policy.agent)
            if old is not None and old.id == policy.id:
                return
            async with self._changing_weights(harmless=Untouched):
                await self._serving.load(self._server, policy, old)
                self._loaded[policy.agent] = policy

    async def _order(self, path: str) -> None:
        async with self._gate.change():
            self._check_whole()
            await self._server.post(path, {})

    @asynccontextmanager
    async def _changing_weights(
        self, *, harmless: type[EngineError] | tuple[()] = ()
    ) -> AsyncGenerator[None]:
        """Inside, weights change: to the end, or the server is stopped until it is revived.

        An error or a cancellation at any `await` may leave it with weights that are not those of
        `_loaded`, and what they sample would be recorded as that policy's.
        """
        self._whole = False
        try:
            yield
        except harmless:
            self._whole = True
            raise
        except BaseException:
            await self._server.stop()
            raise
        self._whole = True

    def _check_whole(self) -> None:
        if not self._whole:
            raise ServerDied("stopped half way through a change of weights")

    async def _sample(self, request: GenerationRequest) -> Completion:
        policy = request.policy
        loaded = self._loaded.get(policy.agent)
        if loaded is None or loaded.id != policy.id:
            serves = "nothing" if loaded is None else f"step {loaded.step}"
            raise EngineError(
                f"{policy.agent} was asked for at step {policy.step} and the engine serves "
                f"{serves} for it: load the policy first"
            )
        self._check_whole()
        started = time.perf_counter()
        response = await self._server.post(
            "/v1/completions", self._body(request, self._serving.model_name(policy))
        )
        choice = response.json()["choices"][0]
        return Completion(
            token_ids=tuple(choice["token_ids"]),
            logprobs=tuple(choice["logprobs"]["token_logprobs"]),
            finish_reason=FinishReason(choice["finish_reason"]),
            seconds=time.perf_counter() - started,
        )

    def _body(self, request: GenerationRequest, model: str) -> dict[str, object]:
        sampling = request.sampling
        return {
            "model": model,
            "prompt": request.prompt_token_ids,
            "max_tokens": self._room(request),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed,
            "stop_token_ids": self._end_token_ids,
            # The sampled token's own log-probability, of the model at temperature 1.
            "logprobs": 0,
            "return_token_ids": True,
        }

    def _room(self, request: GenerationRequest) -> int:
        room = self._config.max_model_length - len(request.prompt_token_ids)
        if room < 1:
            raise EngineError(
                f"a prompt of {len(request.prompt_token_ids)} tokens leaves no room in "
                f"{self._config.max_model_length}: raise engine.max_model_length"
            )
        return min(room, request.sampling.max_tokens)
