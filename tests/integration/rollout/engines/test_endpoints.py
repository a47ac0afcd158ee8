"""Servers that are running already: one is killed and one is added while requests go on."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from mappa_core.core.errors import EngineError
from mappa_core.core.ids import content_id
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion, Sampling
from mappa_core.models.serving.command import cpu_arguments, environment
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.transformers.vllm_stub import Flags, VllmStub, free_port
from mappa_core.rollout.engines.vllm.endpoints_engine import EndpointsEngine
from tests.builders import make_policy, make_run
from tests.tiny_model import save_adapter, save_tiny_model

LENGTH = 128
USED, LEFT_OUT = "is used now", "is left out"
SOLVER = make_policy(make_run(), "solver")


class Started(Protocol):
    """A server that the test starts and kills."""

    @property
    def url(self) -> str: ...

    async def start(self) -> None: ...

    async def kill(self) -> None: ...


@dataclass(slots=True)
class ByHand:
    """What `vllm serve` starts, on a CPU; the command itself needs a distribution called vllm."""

    model: Path
    log: Path
    flags: Sequence[str] = ("--enable-lora", "--logprobs-mode", "processed_logprobs")
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        words = ("--model", str(self.model), "--host", "127.0.0.1", "--port", str(self.port))
        length = ("--max-model-len", str(LENGTH), "--dtype", "float32")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (
                    *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words, *length),
                    *(*cpu_arguments(LENGTH, 0.1, 8), *self.flags),
                ),
                env=environment(os.environ, device="cpu"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("served") / "model", hidden=256)


@pytest.fixture
def trained(base: Path, tmp_path: Path) -> PolicyVersion:
    adapter = save_adapter(base, tmp_path / "adapter", size=0.1)
    return replace(make_policy(make_run(), "solver", 1), adapter_uri=str(adapter))


def stub(base: Path, **flags: Any) -> VllmStub:
    return VllmStub(replace(Flags(model=base, max_model_len=LENGTH), **flags), free_port())


@asynccontextmanager
async def opened(
    servers: Sequence[Started], base: Path, directory: Path, seconds: float = 20
) -> AsyncGenerator[EndpointsEngine]:
    """The engine on `servers`, which are killed in the end."""
    config = EngineConfig(
        device="cpu",
        max_model_length=LENGTH,
        urls=tuple(server.url for server in servers),
        start_seconds=seconds,
    )
    setup = EngineSetup(
        config=config,
        model=base,
        name="tiny",
        agents=("solver", "verifier"),
        end_token_ids=(2,),
        work_directory=directory / "work",
        log_directory=directory / "logs",
        lora_rank=8,
    )
    engine = EndpointsEngine(setup, look_again_seconds=0.05)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()
        for server in servers:
            await server.kill()
        assert not list(setup.work_directory.iterdir())


def requests(policy: PolicyVersion, count: int = 6) -> list[GenerationRequest]:
    """As many problems with one request each."""
    return [
        GenerationRequest(
            policy=policy,
            prompt_token_ids=(1, 5, 9, number + 3),
            sampling=Sampling(temperature=1.0, top_p=1.0, max_tokens=32),
            seed=number,
            problem_id=content_id("problem", number),
        )
        for number in range(count)
    ]


async def sampled(engine: EndpointsEngine, policy: PolicyVersion) -> list[tuple[int, ...]]:
    done = await asyncio.gather(*map(engine.generate, requests(policy)))
    return [completion.token_ids for completion in done]


async def said(
    caplog: pytest.LogCaptureFixture, server: Started, what: str, times: int = 1
) -> None:
    """Wait until the engine has said it of the server so often."""
    async with asyncio.timeout(240):
        while times_said(caplog, server, what) < times:
            await asyncio.sleep(0.02)


def times_said(caplog: pytest.LogCaptureFixture, server: Started, what: str) -> int:
    return sum(server.url in one and what in one for one in caplog.messages)


async def adapters(server: Started) -> list[str]:
    async with httpx.AsyncClient(trust_env=False) as client:
        cards = (await client.get(f"{server.url}/v1/models")).json()["data"]
    return [card["id"] for card in cards if card["parent"]]


async def play(
    first: Started,
    second: Started,
    trained: PolicyVersion,
    opened_on: Callable[[Sequence[Started]], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Add one, kill the other in the middle of requests, have it come back, kill the one."""
    await first.start()
    async with opened_on((first, second)) as engine:
        await engine.load(SOLVER)
        by_base = await sampled(engine, SOLVER)
        await second.start()
        await said(caplog, second, USED)
        assert await sampled(engine, SOLVER) == by_base
        await engine.load(trained)
        for server in (first, second):
            [name] = await adapters(server)
            assert name.startswith(str(trained.id))
        by_adapter = await sampled(engine, trained)
        assert by_adapter != by_base
        under_way = asyncio.create_task(sampled(engine, trained))
        await asyncio.sleep(0.01)
        await first.kill()
        assert await under_way == by_adapter
        # A request may have been through before: the next one finds it gone.
        assert await sampled(engine, trained) == by_adapter
        await said(caplog, first, LEFT_OUT)
        used = times_said(caplog, first, USED)
        await first.start()
        await said(caplog, first, USED, used + 1)
        await second.kill()
        assert await sampled(engine, trained) == by_adapter
        [name] = await adapters(first)
        assert name.startswith(str(trained.id))


def test_one_is_killed_and_one_added_while_requests_go_on(
    base: Path, trained: PolicyVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def on(servers: Sequence[Started]) -> Any:
        return opened(servers, base, tmp_path)

    asyncio.run(play(stub(base), stub(base), trained, on, caplog))


@pytest.mark.slow  # starts vLLM on a CPU three times
@pytest.mark.timeout(900)
def test_vllm_servers_started_by_hand(
    base: Path, trained: PolicyVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (ByHand(base, tmp_path / f"{name}.log") for name in ("first", "second"))

    def on(servers: Sequence[Started]) -> Any:
        return opened(servers, base, tmp_path, seconds=300)

    asyncio.run(play(first, second, trained, on, caplog))


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ({"max_model_len": 64}, r"--max-model-len 128 or more .*it has 64"),
        ({"processed_logprobs": False}, "--logprobs-mode processed_logprobs is missing"),
        ({"lora": False}, r"LoRA is not enabled.*--enable-lora"),
        ({"updating": False}, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ({"max_lora_rank": 4}, r"rank 8 is greater than max_lora_rank 4.*--max-lora-rank 8"),
        (
            {"lora": False, "processed_logprobs": False},
            r"processed_logprobs is missing; .*--enable-lora",
        ),
    ],
)
def test_what_a_server_lacks_is_said_in_one_line_at_the_start(
    base: Path, tmp_path: Path, flags: dict[str, Any], missing: str
) -> None:
    async def scenario() -> None:
        good, bad = stub(base), stub(base, **flags)
        await asyncio.gather(good.start(), bad.start())
        with pytest.raises(EngineError, match=f"{bad.url} cannot serve this run: .*{missing}") as e:
            async with opened((good, bad), base, tmp_path):
                pass
        assert "\n" not in str(e.value)

    asyncio.run(scenario())


def test_another_model_is_refused_by_both_names(base: Path, tmp_path: Path) -> None:
    another = save_tiny_model(tmp_path / "another", hidden=256, seed=1)

    async def scenario(name: str) -> None:
        server = stub(another, name=name)
        await server.start()
        async with opened((server,), base, tmp_path):
            pass

    with pytest.raises(EngineError, match=r"it serves other \(.*another\), not tiny \(start it"):
        asyncio.run(scenario("other"))
    # Its owner says that it is the same.
    asyncio.run(scenario("tiny"))


def test_where_none_is_up_the_addresses_are_named(base: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened((server := stub(base),), base, tmp_path, seconds=0.2):
            raise AssertionError(f"{server.url} is not up")

    with pytest.raises(EngineError, match=r"no server of engine\.urls has answered for 0 s: .*127"):
        asyncio.run(scenario())


def test_a_server_started_anew_between_requests_is_given_its_policies(
    base: Path, trained: PolicyVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await (server := stub(base)).start()
        async with opened((server,), base, tmp_path) as engine:
            await engine.load(trained)
            before = await sampled(engine, trained)
            await server.kill()
            await server.start()
            assert await sampled(engine, trained) == before
            assert len(server.adapters) == 1
        await said(caplog, server, "does not know")

    asyncio.run(scenario())


def test_problems_stay_and_are_spread_and_nothing_is_left_behind(
    base: Path, trained: PolicyVersion, tmp_path: Path
) -> None:
    async def scenario() -> None:
        servers = (stub(base), stub(base))
        await asyncio.gather(*(server.start() for server in servers))
        async with opened(servers, base, tmp_path) as engine:
            await engine.load(SOLVER)
            await engine.load(trained)
            for _ in range(2):
                for each in requests(trained, 4):
                    await engine.generate(each)
            # One token of the check, and two requests for each of two problems.
            assert [len(server.sampled) for server in servers] == [5, 5]
            await engine.load(SOLVER)
            assert [server.adapters for server in servers] == [(), ()]
            await engine.load(trained)
            await engine.close()
            assert [server.adapters for server in servers] == [(), ()]

    asyncio.run(scenario())


def test_a_policy_that_one_cannot_read_leaves_that_one_out(
    base: Path, trained: PolicyVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless none can: then the old one stays."""
    wider = save_adapter(base, tmp_path / "wider", rank=16)

    async def scenario() -> list[Completion]:
        wide, narrow = stub(base, max_lora_rank=64), stub(base, max_lora_rank=8)
        await asyncio.gather(wide.start(), narrow.start())
        async with opened((wide, narrow), base, tmp_path) as engine:
            await engine.load(trained)
            lost = replace(make_policy(make_run(), "solver", 2), adapter_uri=str(tmp_path / "no"))
            with pytest.raises(EngineError, match=r"cannot load solver's adapter .*no: "):
                await engine.load(lost)
            assert await sampled(engine, trained)
            await engine.load(replace(lost, adapter_uri=str(wider)))
            await said(caplog, narrow, LEFT_OUT)
            done = map(engine.generate, requests(replace(lost, adapter_uri=str(wider))))
            return await asyncio.gather(*done)

    assert len(asyncio.run(scenario())) == 6
