"""A managed server survives the death of its server, and keeps requests and weights apart."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import (
    FinishReason,
    GenerationRequest,
    PolicyVersion,
    Sampling,
)
from mappa_core.models.serving.client import Reply, ServerDied
from mappa_core.models.serving.server import Server
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.vllm.managed_server import ManagedServer
from mappa_core.rollout.engines.vllm.weight_loaders import AdapterLoader, WeightsUnchanged
from tests.builders import make_policy, make_run

BASE = make_policy(make_run())
STEP_1 = make_policy(make_run(), step=1)
STEP_2 = make_policy(make_run(), step=2)


def part(tokens: list[int], logprobs: list[float], reason: str | None = None) -> dict[str, Any]:
    """Make one event of an answer, as vLLM streams it."""
    choice = {"token_ids": tokens, "logprobs": {"token_logprobs": logprobs}}
    return {"choices": [choice if reason is None else choice | {"finish_reason": reason}]}


class ServerInMemory:
    """Answers as vLLM does, and dies when told to."""

    log = Path("server.log")

    def __init__(self) -> None:
        self.starts = 0
        self.running = False
        self.deaths_to_come = 0
        self.paths: list[str] = []
        self.bodies: list[Mapping[str, object]] = []
        self.parts = [part([5], [-0.5]), part([2], [-0.25], "stop")]
        self.hold = asyncio.Event()
        self.hold.set()

    async def start(self, seconds: float) -> None:
        self.starts += 1
        self.running = True

    async def stop(self) -> None:
        self.running = False

    async def readable(self, checkpoint: Path) -> Path:
        return checkpoint.resolve()

    async def post(self, path: str, body: Mapping[str, object]) -> Reply:
        self.paths.append(path)
        self.bodies.append(body)
        await self.hold.wait()
        if self.deaths_to_come:
            self.deaths_to_come -= 1
            self.running = False
        if not self.running:
            raise ServerDied("connection reset")
        return Reply(status=200, body=b"{}")

    async def events(self, path: str, body: Mapping[str, object]) -> list[dict[str, Any]]:
        assert body["stream"] is True
        await self.post(path, body)
        return list(self.parts)


def make_managed(server: ServerInMemory, *, restarts: int = 3) -> ManagedServer:
    config = EngineConfig(restarts=restarts, max_model_length=100)
    return ManagedServer(server, AdapterLoader(), end_token_ids=(2,), config=config)  # pyright: ignore[reportArgumentType]


def request(policy: PolicyVersion, *, prompt_tokens: int = 3) -> GenerationRequest:
    return GenerationRequest(
        policy=policy,
        prompt_token_ids=tuple(range(prompt_tokens)),
        sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=8),
        seed=7,
    )


def test_a_completion_is_what_the_server_sampled() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(BASE)
        completion = await managed.generate(request(BASE))
        assert completion.token_ids == (5, 2)
        assert completion.logprobs == (-0.5, -0.25)
        assert completion.finish_reason is FinishReason.STOP
        assert server.bodies[-1]["prompt"] == (0, 1, 2)
        assert server.bodies[-1]["seed"] == 7
        assert server.bodies[-1]["stop_token_ids"] == (2,)

    asyncio.run(scenario())


def test_an_answer_that_stops_without_an_end_is_a_death() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory(), restarts=0)
        await managed.start()
        await managed.load(BASE)
        server.parts = server.parts[:1]
        with pytest.raises(EngineError, match=r"died 1 time .*an answer without an end"):
            await managed.generate(request(BASE))

    asyncio.run(scenario())


def test_requests_that_see_a_death_share_one_restart_and_are_repeated() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(STEP_1)
        server.deaths_to_come = 1
        completions = await asyncio.gather(*(managed.generate(request(STEP_1)) for _ in range(20)))
        assert [completion.token_ids for completion in completions] == [(5, 2)] * 20
        assert server.starts == 2
        assert server.paths.count("/v1/load_lora_adapter") == 2

    asyncio.run(scenario())


def test_a_server_that_keeps_dying_is_given_up_with_its_log() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory(), restarts=2)
        await managed.start()
        await managed.load(BASE)
        server.deaths_to_come = 99
        with pytest.raises(EngineError, match=r"died 3 times .* server\.log"):
            await managed.generate(request(BASE))
        assert server.starts == 3

    asyncio.run(scenario())


def test_a_new_policy_forgives_earlier_deaths() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory(), restarts=1)
        await managed.start()
        policy = BASE
        for step in range(1, 4):
            await managed.load(policy)
            server.deaths_to_come = 1
            await managed.generate(request(policy))
            policy = make_policy(make_run(), step=step)
        assert server.starts == 4

    asyncio.run(scenario())


def test_a_death_while_loading_is_survived() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        server.deaths_to_come = 1
        await managed.load(STEP_1)
        assert server.starts == 2
        assert (await managed.generate(request(STEP_1))).token_ids == (5, 2)

    asyncio.run(scenario())


class InPlace(AdapterLoader):
    """Weights that replace each other, as `Merged` has them, and what may go wrong on the way."""

    def __init__(self, *failures: Exception | None) -> None:
        """`failures`: of each load in turn; then there are none."""
        self.weights = 0
        self.held = asyncio.Event()
        self.hold = asyncio.Event()
        self.hold.set()
        self._failures = list(failures)

    async def load(self, server: Server, policy: PolicyVersion, old: PolicyVersion | None) -> None:
        if not self.hold.is_set():
            self.held.set()
        await self.hold.wait()
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        self.weights = policy.step


class ServerInPlace(ServerInMemory):
    """Starts with the base weights, and remembers whose weights each request was sampled from."""

    def __init__(self, serving: InPlace) -> None:
        super().__init__()
        self.serving = serving
        self.sampled: list[int] = []

    async def start(self, seconds: float) -> None:
        await super().start(seconds)
        self.serving.weights = 0

    async def post(self, path: str, body: Mapping[str, object]) -> Reply:
        response = await super().post(path, body)
        self.sampled.append(self.serving.weights)
        return response


def in_place(*failures: Exception | None) -> tuple[ManagedServer, ServerInPlace]:
    server = ServerInPlace(serving := InPlace(*failures))
    config = EngineConfig(restarts=3, max_model_length=100)
    return ManagedServer(server, serving, end_token_ids=(2,), config=config), server  # pyright: ignore[reportArgumentType]


DIED = ServerDied("connection reset while weights were read")
FULL = WeightsUnchanged("No space left on device")


@pytest.mark.parametrize(
    ("failure", "raised"),
    [(FULL, EngineError), (EngineError("half of the weights"), EngineError), (DIED, None)],
)
def test_a_new_server_serves_the_policy_or_nobody(
    failure: Exception, raised: type[EngineError] | None
) -> None:
    async def scenario() -> None:
        managed, server = in_place(None, failure)
        await managed.start()
        await managed.load(STEP_1)
        server.deaths_to_come = 1
        if raised is not None:
            with pytest.raises(raised):
                await managed.generate(request(STEP_1))
            assert not server.running
        await managed.generate(request(STEP_1))
        assert (server.sampled, server.starts) == ([1], 3)

    asyncio.run(scenario())


def test_a_server_that_dies_of_every_revival_is_given_up() -> None:
    async def scenario() -> None:
        managed, server = in_place(None, *(DIED for _ in range(9)))
        await managed.start()
        await managed.load(STEP_1)
        server.deaths_to_come = 1
        with pytest.raises(EngineError, match=r"died 4 times .* server\.log"):
            await managed.generate(request(STEP_1))
        assert (server.running, server.starts) == (False, 4)

    asyncio.run(scenario())


@pytest.mark.parametrize("reviving", [True, False])
def test_weights_whose_change_was_cancelled_are_nobodys(*, reviving: bool) -> None:
    async def scenario() -> None:
        managed, server = in_place()
        await managed.start()
        await managed.load(STEP_1)
        server.serving.hold.clear()
        server.deaths_to_come = int(reviving)
        cut_off = managed.generate(request(STEP_1)) if reviving else managed.load(STEP_2)
        task = asyncio.create_task(cut_off)
        await server.serving.held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.running
        server.serving.hold.set()
        await managed.sleep()
        await managed.generate(request(STEP_1))
        assert server.sampled == [1, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize(("failure", "starts"), [(FULL, 1), (EngineError("half of them"), 2)])
def test_the_old_policy_is_served_after_a_new_one_that_cannot_be(
    failure: EngineError, starts: int
) -> None:
    async def scenario() -> None:
        managed, server = in_place(None, failure)
        await managed.start()
        await managed.load(STEP_1)
        with pytest.raises(EngineError):
            await managed.load(STEP_2)
        await managed.generate(request(STEP_1))
        assert (server.sampled, server.starts) == ([1], starts)

    asyncio.run(scenario())


def test_only_the_loaded_policy_is_served() -> None:
    async def scenario() -> None:
        managed = make_managed(ServerInMemory())
        await managed.start()
        with pytest.raises(EngineError, match="serves nothing for it"):
            await managed.generate(request(BASE))
        await managed.load(BASE)
        await managed.load(STEP_1)
        with pytest.raises(EngineError, match="asked for at step 0 and the engine serves step 1"):
            await managed.generate(request(BASE))

    asyncio.run(scenario())


def test_loading_waits_for_requests_under_way() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(BASE)
        server.hold.clear()
        sampling = asyncio.create_task(managed.generate(request(BASE)))
        await asyncio.sleep(0.01)
        loading = asyncio.create_task(managed.load(STEP_1))
        await asyncio.sleep(0.01)
        assert server.paths == ["/v1/completions"]
        server.hold.set()
        await asyncio.gather(sampling, loading)
        assert server.paths == ["/v1/completions", "/v1/load_lora_adapter"]

    asyncio.run(scenario())


def test_loading_the_same_policy_again_does_nothing() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(STEP_1)
        await managed.load(STEP_1)
        assert server.paths == ["/v1/load_lora_adapter"]

    asyncio.run(scenario())


def test_an_old_adapter_is_dropped_after_the_new_one_is_there() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(STEP_1)
        await managed.load(STEP_2)
        assert server.paths[1:] == ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"]
        assert server.bodies[-1]["lora_name"] == str(STEP_1.id)

    asyncio.run(scenario())


def test_the_budget_is_what_the_prompt_leaves() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(BASE)
        await managed.generate(request(BASE, prompt_tokens=95))
        assert server.bodies[-1]["max_tokens"] == 5
        with pytest.raises(EngineError, match=r"raise engine\.max_model_length"):
            await managed.generate(request(BASE, prompt_tokens=100))

    asyncio.run(scenario())


def test_a_sleeping_server_is_woken_and_keeps_its_policy() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(STEP_1)
        await managed.sleep()
        await managed.wake()
        assert server.paths[-2:] == ["/sleep?level=1", "/wake_up"]
        assert (await managed.generate(request(STEP_1))).token_ids == (5, 2)

    asyncio.run(scenario())


def test_a_server_that_died_asleep_is_started_with_its_policies() -> None:
    async def scenario() -> None:
        managed = make_managed(server := ServerInMemory())
        await managed.start()
        await managed.load(STEP_1)
        await managed.sleep()
        server.deaths_to_come = 1
        await managed.wake()
        assert server.starts == 2
        assert server.paths[-1] == "/v1/load_lora_adapter"
        assert (await managed.generate(request(STEP_1))).token_ids == (5, 2)

    asyncio.run(scenario())
