"""The engine on vLLM servers that are running already: `engine.urls`.

start    every address is checked; one that is up and lacks something is refused, by one line
load     the policy's adapter is uploaded to all that are up before any request names it
generate ─▶ the server that has the problem, or the one with least under way
              └─ gone: left out, and the request is asked again at another one
                   tried every few seconds as at the start ─▶ given all policies ─▶ back

Starting a server again is its owner's.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from mappa_core.core.concurrency import all_ended
from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.core.text import counted
from mappa_core.models.serving.client import ServerDied
from mappa_core.rollout.engines.base import EngineSetup, check_served
from mappa_core.rollout.engines.vllm.endpoint import Endpoint
from mappa_core.rollout.engines.vllm.probe import Probe, write_probe
from mappa_core.rollout.engines.vllm.read_write_lock import ReadWriteLock
from mappa_core.rollout.engines.vllm.replicas import Balance

_LOOK_AGAIN_SECONDS = 2.0

_log = logging.getLogger(__name__)


class EndpointsEngine:
    """An `Engine` on servers that it neither starts nor stops, each of which serves all agents.

    To be used from one event loop.
    """

    def __init__(
        self, setup: EngineSetup, *, look_again_seconds: float = _LOOK_AGAIN_SECONDS
    ) -> None:
        """Prepare it; `start` tries every server of `setup.config.urls`.

        Args:
            setup: What any engine is opened with.
            look_again_seconds: Between two tries of a server that is left out.
        """
        self.setup = setup
        """What it was opened with."""
        self._endpoints = tuple(Endpoint(url, setup) for url in setup.config.urls)
        self._balance = Balance(len(self._endpoints))
        self._look_again_seconds = look_again_seconds
        self._weights_lock = ReadWriteLock()
        self._served: dict[str, PolicyVersion] = {}
        self._probe: Probe | None = None
        self._some_left = asyncio.Event()
        self._returns: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Try every server; return when one can be used.

        Raises:
            EngineError: One lacks something, or none has answered for `start_seconds`.
        """
        self._probe = await asyncio.to_thread(write_probe, self.setup)
        await all_ended(
            (partial(self._first_try, each) for each in self._endpoints),
            at_once=len(self._endpoints),
        )
        await self._present()

    async def load(self, policy: PolicyVersion) -> None:
        """Serve `policy` on all servers; waits for the requests under way, and later ones wait.

        A server that cannot read what others can is left out.

        Raises:
            EngineError: None can read it; the old one is served as before.
        """
        if policy.agent not in self.setup.agents:
            raise EngineError(f"no agent {policy.agent} here: only {', '.join(self.setup.agents)}")
        async with self._weights_lock.writing():
            old = self._served.get(policy.agent)
            if old is not None and old.id == policy.id:
                return
            # A server that comes back meanwhile has been given the old policies.
            while lacking := [each for each in await self._present() if not each.has(policy)]:
                await self._put(policy, lacking)
            self._served[policy.agent] = policy
            if old is not None:
                await all_ended(
                    (partial(self._drop, old, each) for each in await self._present()),
                    at_once=len(self._endpoints),
                )

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action, elsewhere again where a server is lost."""
        async with self._weights_lock.reading():
            check_served(request.policy, self._served.get(request.policy.agent))
            for _ in range(len(self._endpoints) * (self.setup.config.restarts + 1)):
                present = {self._endpoints.index(each) for each in await self._present()}
                with self._balance.chosen(request.problem_id, among=present) as number:
                    endpoint = self._endpoints[number]
                    try:
                        return await endpoint.generate(request)
                    except ServerDied as death:
                        self._leave_out(endpoint, str(death))
            lost = counted(len(self._endpoints) * (self.setup.config.restarts + 1), "server")
            raise EngineError(
                f"{lost} of engine.urls died of one request of {request.policy.agent}: read their "
                "logs; mappa train --resume goes on from here"
            )

    async def close(self) -> None:
        """Unload what was put on the servers, and leave them running; safe to call twice."""
        for returning in self._returns:
            returning.cancel()
        await asyncio.gather(*self._returns, return_exceptions=True)
        await asyncio.gather(*map(_left, self._endpoints))
        if self._probe is not None:
            self._probe.remove()

    async def _present(self) -> Sequence[Endpoint]:
        """List the servers that are not left out, waiting for one where there is none."""
        patience = self.setup.config.start_seconds
        try:
            async with asyncio.timeout(patience):
                await self._some_left.wait()
        except TimeoutError:
            raise EngineError(
                f"no server of engine.urls has answered for {patience:.0f} s: start one of "
                f"{', '.join(self.setup.config.urls)}, or raise engine.start_seconds"
            ) from None
        return [each for each in self._endpoints if not each.left_out]

    async def _first_try(self, endpoint: Endpoint) -> None:
        try:
            await self._take_in(endpoint)
        except ServerDied as death:
            _log.warning("%s of engine.urls is not up yet: %s", endpoint.url, death)
            self._look_for(endpoint)

    async def _take_in(self, endpoint: Endpoint) -> None:
        """Check a server, give it all policies, and let requests go there."""
        assert self._probe is not None, "start() comes first"
        await endpoint.check(self._probe)
        while lacking := [each for each in self._served.values() if not endpoint.has(each)]:
            await endpoint.put(lacking[0])
        # Nothing was waited for since it had all of them.
        endpoint.left_out = False
        self._some_left.set()

    async def _put(self, policy: PolicyVersion, endpoints: Sequence[Endpoint]) -> None:
        """Give servers a policy, and leave out those that do not take what others do.

        Raises:
            EngineError: None takes it, and they all live.
        """
        putting = (endpoint.put(policy) for endpoint in endpoints)
        outcomes = await asyncio.gather(*putting, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, EngineError)]
        taken = any(endpoint.has(policy) for endpoint in self._endpoints)
        if len(refused) == len(endpoints) and not taken:
            raise refused[0]
        for endpoint, outcome in zip(endpoints, outcomes, strict=True):
            if isinstance(outcome, EngineError | ServerDied):
                self._leave_out(endpoint, str(outcome))
            elif outcome is not None:
                raise outcome

    async def _drop(self, policy: PolicyVersion, endpoint: Endpoint) -> None:
        try:
            await endpoint.drop(policy)
        except (EngineError, ServerDied) as error:
            self._leave_out(endpoint, str(error))

    def _leave_out(self, endpoint: Endpoint, reason: str) -> None:
        if endpoint.left_out:
            return
        endpoint.left_out = True
        if all(each.left_out for each in self._endpoints):
            self._some_left.clear()
        _log.warning("%s of engine.urls is left out: %s", endpoint.url, reason)
        self._look_for(endpoint)

    def _look_for(self, endpoint: Endpoint) -> None:
        returning = asyncio.create_task(self._take_back(endpoint))
        self._returns.add(returning)
        returning.add_done_callback(self._returns.discard)

    async def _take_back(self, endpoint: Endpoint) -> None:
        """Wait until the server is up and has all policies; say once what it lacks."""
        said = ""
        while endpoint.left_out:
            await asyncio.sleep(self._look_again_seconds)
            try:
                await self._take_in(endpoint)
            except ServerDied:
                continue
            except EngineError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("%s", said)
        _log.warning("%s of engine.urls is used now", endpoint.url)


async def _left(endpoint: Endpoint) -> None:
    """Take off a server what this run has put there, where it still answers."""
    try:
        await endpoint.drop_all()
    except (EngineError, ServerDied) as error:
        _log.info("%s keeps adapters of this run: %s", endpoint.url, error)
    finally:
        await endpoint.close()
