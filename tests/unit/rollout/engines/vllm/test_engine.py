"""An engine on several servers asks the same one about the same problem."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mappa_core.core.ids import content_id
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.engine import VllmEngine
from tests.builders import make_policy, make_run
from tests.unit.rollout.engines.vllm.test_managed_server import ServerInMemory, request

POLICY = make_policy(make_run())


class ServersInMemory:
    """Servers that answer at once."""

    def __init__(self) -> None:
        self.all: list[ServerInMemory] = []

    def open(self, _number: int, _flags: Sequence[str], _log: Path) -> ServerInMemory:
        self.all.append(ServerInMemory())
        return self.all[-1]

    def close(self) -> None:
        pass


def test_a_problems_requests_stay_with_one_replica_and_problems_are_spread(tmp_path: Path) -> None:
    servers = ServersInMemory()
    setup = EngineSetup(
        config=EngineConfig(serving="adapters", max_model_length=100),
        model="m",
        agents=(POLICY.agent,),
        end_token_ids=(2,),
        work_directory=tmp_path / "work",
        log_directory=tmp_path / "logs",
        device="cpu",
        replicas=2,
    )
    engine = VllmEngine(setup, servers)  # pyright: ignore[reportArgumentType]
    problems = [content_id("problem", number) for number in (0, 1, 2, 3)]

    async def scenario() -> None:
        await engine.start()
        await engine.load(POLICY)
        for turn in (3, 4, 5):
            # A prompt's length says whose it is: in another order each time.
            for number in sorted(range(4), key=lambda one: (one * turn) % 5):
                asked = request(POLICY, prompt_tokens=10 * number + turn)
                await engine.generate(replace(asked, problem_id=problems[number]))

    asyncio.run(scenario())
    asked_of = [
        {len(body["prompt"]) // 10 for body in server.bodies if "prompt" in body}  # pyright: ignore[reportArgumentType]
        for server in servers.all
    ]
    assert [len(each) for each in asked_of] == [2, 2]
    assert asked_of[0].isdisjoint(asked_of[1])
