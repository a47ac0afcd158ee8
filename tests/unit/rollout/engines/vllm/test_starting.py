"""Servers that share a GPU start one after another, others at once."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from mappa_core.core.errors import EngineError
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.command import server_flags
from mappa_core.rollout.engines.vllm.engine import VllmEngine, start_all, turns
from tests.unit.rollout.engines.vllm.test_managed_server import ServerInMemory


@dataclass
class LoggedServer:
    """Writes down when it begins and ends to start."""

    name: str
    log: list[str]
    fails: bool = False

    async def start(self) -> None:
        self.log.append(f"{self.name} begins")
        await asyncio.sleep(0)
        if self.fails:
            raise EngineError(f"{self.name} does not start")
        self.log.append(f"{self.name} answers")


def servers(log: list[str], failing: str = "") -> Sequence[LoggedServer]:
    return [LoggedServer(name, log, fails=name == failing) for name in ("a", "b", "c")]


def arranged(
    all_of_them: Sequence[LoggedServer], *, one_by_one: bool
) -> Sequence[Sequence[LoggedServer]]:
    return [all_of_them] if one_by_one else [[one] for one in all_of_them]


@pytest.mark.parametrize("one_by_one", [True, False])
def test_all_are_up_when_it_returns(one_by_one: bool) -> None:
    log: list[str] = []
    asyncio.run(start_all(arranged(servers(log), one_by_one=one_by_one)))
    begun = ["a begins", "b begins", "c begins"]
    answered = ["a answers", "b answers", "c answers"]
    in_turn = [line for pair in zip(begun, answered, strict=True) for line in pair]
    assert log == (in_turn if one_by_one else begun + answered)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_one_that_fails_is_told_when_none_is_starting_any_more(one_by_one: bool) -> None:
    log: list[str] = []
    with pytest.raises(EngineError, match="b does not start"):
        asyncio.run(start_all(arranged(servers(log, failing="b"), one_by_one=one_by_one)))
    # One after another, the third is not begun at all.
    rest = [] if one_by_one else ["c answers", "c begins"]
    assert sorted(log) == sorted(["a answers", "a begins", "b begins", *rest])


@pytest.mark.parametrize(("serving", "share"), [("merged", "0.200"), ("adapters", "0.600")])
def test_each_server_on_a_gpu_is_told_its_cache(
    serving: Literal["merged", "adapters"], share: str
) -> None:
    setup = EngineSetup(
        config=EngineConfig(serving=serving, gpu_memory_utilization=0.6),
        model="m",
        agents=("a", "b", "c"),
        end_token_ids=(),
        work_directory=Path("work"),
        log_directory=Path("logs"),
        gpu_cache_bytes=7 * 10**9,
    )
    told = server_flags(setup, "cuda")
    assert told[told.index("--kv-cache-memory-bytes") + 1] == "7000000000"
    assert told[told.index("--gpu-memory-utilization") + 1] == share
    assert ("--enable-lora" in told) == (serving == "adapters")
    # On a CPU each has engine.kv_cache_gib.
    on_cpu = server_flags(setup, "cpu")
    assert on_cpu[on_cpu.index("--kv-cache-memory-bytes") + 1] == str(2**30)


def test_those_take_turns_that_have_a_gpu_in_common() -> None:
    on_two = (("0",), ("1",), ("0",), ("1",))
    assert turns(on_two, on_gpu=True) == [[0, 2], [1, 3]]
    # One GPU, by no name: all of them are on it.
    assert turns(((), (), ()), on_gpu=True) == [[0, 1, 2]]
    assert turns(((), (), ()), on_gpu=False) == [[0], [1], [2]]


class LoggedServers:
    """Servers in memory that write down when they begin and end to start."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def open(self, number: int, _flags: Sequence[str], _log: Path) -> ServerInMemory:
        logged = LoggedServer(str(number), self.log)

        class Started(ServerInMemory):
            async def start(self, seconds: float) -> None:
                await logged.start()

        return Started()

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("device", "order"),
    [
        ("cuda", ["0 begins", "1 begins", "0 answers", "2 begins", "1 answers", "2 answers"]),
        ("cpu", ["0 begins", "1 begins", "2 begins", "0 answers", "1 answers", "2 answers"]),
    ],
)
def test_an_engine_starts_its_servers_in_turn_where_they_share_a_gpu(
    device: str, order: list[str], tmp_path: Path
) -> None:
    servers = LoggedServers()
    setup = EngineSetup(
        config=EngineConfig(serving="merged"),
        model="m",
        agents=("a", "b", "c"),
        end_token_ids=(),
        work_directory=tmp_path / "work",
        log_directory=tmp_path / "logs",
        device=device,
        devices=(("0",), ("1",), ("0",)) if device == "cuda" else (),
    )
    asyncio.run(VllmEngine(setup, servers).start())  # pyright: ignore[reportArgumentType]
    assert servers.log == order
