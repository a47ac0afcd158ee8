"""Several SandboxFusion servers as one sandbox, against processes that die and come back.

They are `tests/fakes/fusion_server.py`, which speaks SandboxFusion's API over a real network, and
beside `.ci/sandbox-fusion` two of the server itself, of which the last test kills one.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.rollout.sandboxes.fusion_servers import FusionServers
from mappa_core.rollout.sandboxes.probe import Probe, works
from mappa_core.rollout.sandboxes.sandbox_fusion import FusionSandbox
from tests.backends import REAL_FUSION, run
from tests.contract.conftest import SERVER

pytestmark = pytest.mark.anyio


async def anything(_: Sandbox) -> str | None:
    """A probe that every server passes which runs a program at all."""
    return None


class Counted(httpx.AsyncHTTPTransport):
    """The real network, and what went over it to each server."""

    def __init__(self, asked: Counter[str]) -> None:
        super().__init__(trust_env=False)
        self._asked = asked

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        self._asked[f"http://127.0.0.1:{request.url.port}"] += 1
        return answer


class Pair:
    """Two servers, each of which can be killed and started again at its address."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.asked: Counter[str] = Counter()
        self.urls = self.begin(), self.begin()

    def begin(self, port: str = "0") -> str:
        command = [sys.executable, str(SERVER), port]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        self._processes[url] = process
        return url

    def kill(self, url: str) -> None:
        with self._processes.pop(url) as process:
            process.kill()

    def close(self) -> None:
        for url in list(self._processes):
            self.kill(url)

    def sandbox(self, passes: Probe, patience_seconds: float = 20.0) -> FusionServers:
        return FusionServers(
            [FusionSandbox(url, 8, transport=Counted(self.asked)) for url in self.urls],
            8,
            passes,
            look_again_seconds=0.1,
            patience_seconds=patience_seconds,
        )


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Pair()) as servers:
        yield servers


@pytest.fixture
async def sandbox(pair: Pair) -> AsyncIterator[FusionServers]:
    servers = pair.sandbox(anything)
    await servers.start()
    pair.asked.clear()
    yield servers
    await servers.close()


async def runs(sandbox: Sandbox, count: int) -> None:
    results = await asyncio.gather(*(run(sandbox, "print(1)") for _ in range(count)))
    assert [result.stdout for result in results] == ["1\n"] * count


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.05)


async def test_both_are_used_evenly(pair: Pair, sandbox: FusionServers) -> None:
    await runs(sandbox, 8)
    assert set(pair.asked.values()) == {4}
    for _ in range(4):
        await runs(sandbox, 1)
    assert set(pair.asked.values()) == {6}


async def test_the_one_that_is_busy_gets_no_more_than_it_ends(
    pair: Pair, sandbox: FusionServers
) -> None:
    slow = asyncio.create_task(run(sandbox, "import time; time.sleep(5)"))
    await asyncio.sleep(0.1)
    for _ in range(4):
        await runs(sandbox, 1)
    assert sorted(pair.asked.values()) == [4]
    slow.cancel()


async def test_one_that_is_dead_costs_no_run_and_comes_back(
    pair: Pair, sandbox: FusionServers, caplog: pytest.LogCaptureFixture
) -> None:
    dead, alive = pair.urls
    pair.kill(dead)
    await runs(sandbox, 8)
    assert pair.asked == {alive: 8}
    pair.begin(dead.rpartition(":")[2])
    await eventually(lambda: len(caplog.messages) == 2)
    left_out, back = caplog.messages
    assert f"is left out: {dead} cannot be reached" in left_out
    assert back == f"the SandboxFusion server {dead} is back"
    pair.asked.clear()
    await runs(sandbox, 8)
    assert set(pair.asked) == {dead, alive}


async def test_one_that_dies_in_between_is_not_asked_again(
    pair: Pair, sandbox: FusionServers, tmp_path: Path
) -> None:
    """The program may have run: the run fails, and no other server is sent it."""
    first = asyncio.create_task(run(sandbox, "import time; time.sleep(5)"))
    await asyncio.sleep(0.3)
    pair.kill(pair.urls[0])
    with pytest.raises(SandboxError, match="broke off"):
        await first
    assert pair.asked[pair.urls[1]] == 0
    await runs(sandbox, 4)
    assert pair.asked == {pair.urls[1]: 4}


async def test_while_every_server_is_away_a_run_waits(pair: Pair, sandbox: FusionServers) -> None:
    for url in pair.urls:
        pair.kill(url)
    waiting = asyncio.create_task(runs(sandbox, 1))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    pair.begin(pair.urls[1].rpartition(":")[2])
    await waiting


async def test_a_wait_for_any_server_has_an_end(pair: Pair) -> None:
    servers = pair.sandbox(anything, patience_seconds=0.2)
    await servers.start()
    pair.close()
    with pytest.raises(SandboxError, match=f"answered for 0 s: {', '.join(pair.urls)}"):
        await run(servers, "print(1)")
    await servers.close()


async def test_one_that_lost_its_walls_gets_no_program(pair: Pair) -> None:
    async def passes(sandbox: Sandbox) -> str | None:
        assert isinstance(sandbox, FusionSandbox)
        return "a program read a file outside" if sandbox.url == pair.urls[0] else None

    servers = pair.sandbox(passes)
    await servers.start()
    before = pair.asked[pair.urls[1]]
    await runs(servers, 4)
    assert pair.asked[pair.urls[1]] == before + 4
    await servers.close()


async def test_a_list_of_addresses_is_chosen_as_one(pair: Pair) -> None:
    chosen = await choose_sandbox("sandbox-fusion", 4, fusion_url=", ".join(pair.urls))
    await runs(chosen, 4)
    assert (await chosen.run("print(2)", None, Limits())).tier == chosen.tier
    await chosen.close()
    pair.close()
    with pytest.raises(SandboxUnavailable) as refused:
        await choose_sandbox("sandbox-fusion", 4, fusion_url=",".join(pair.urls))
    assert all(url in str(refused.value) for url in pair.urls)


@pytest.mark.parametrize(
    "servers",
    [pytest.param(os.environ.get("MAPPA_SANDBOXFUSION_PAIR"), id=REAL_FUSION)],
)
@pytest.mark.skipif(
    "MAPPA_SANDBOXFUSION_PAIR" not in os.environ,
    reason="MAPPA_SANDBOXFUSION_PAIR names no two real servers: .ci/sandbox-fusion does",
)
async def test_of_two_real_servers_the_one_that_dies_is_left_out(
    servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    urls, _, process = servers.partition(" ")
    kept, killed = urls.split(",")
    asked = Counter[str]()
    fusion = [FusionSandbox(url, 8, transport=Counted(asked)) for url in (kept, killed)]
    sandbox = FusionServers(fusion, 8, works)
    await sandbox.start()
    asked.clear()
    await runs(sandbox, 8)
    assert asked == {kept: 4, killed: 4}
    under_way = [asyncio.create_task(run(sandbox, "import time; time.sleep(3)")) for _ in "12"]
    children = Path(f"/proc/{process}/task/{process}/children")
    await eventually(lambda: bool(children.read_text()))
    os.kill(int(process), signal.SIGKILL)
    ended = await asyncio.gather(*under_way, return_exceptions=True)
    # Its program may have run: nothing is sent twice.
    assert sorted(type(each).__name__ for each in ended) == ["SandboxError", "ToolResult"]
    asked.clear()
    await runs(sandbox, 8)
    assert asked == {kept: 8}
    assert [killed in message for message in caplog.messages] == [True]
    await sandbox.close()
