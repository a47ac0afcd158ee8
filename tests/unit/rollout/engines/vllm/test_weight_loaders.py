"""Where merged weights lie until a server has read them."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from mappa_core.models.serving.client import Reply
from mappa_core.models.serving.server import OwnServer
from mappa_core.rollout.engines.vllm.weight_loaders import FileLoader
from tests.builders import make_policy, make_run


class _Replica(OwnServer):
    """Reads what it is told to while another one still merges, and notes whether it was there."""

    def __init__(self, log: Path, both: asyncio.Barrier) -> None:
        super().__init__(log)
        self._both = both
        self.found: list[bool] = []

    async def start(self, seconds: float) -> None: ...

    async def stop(self) -> None: ...

    async def make_servable(
        self, base: Path | str, checkpoint: Path, target: Path, dtype: torch.dtype
    ) -> None:
        await self._both.wait()
        target.mkdir(parents=True)

    async def post(self, path: str, body: Mapping[str, object]) -> Reply:
        if path == "/collective_rpc":
            kwargs = body["kwargs"]
            assert isinstance(kwargs, dict)
            self.found.append(Path(str(kwargs["weights_path"])).is_dir())
            await self._both.wait()
        return Reply(status=200, body=b'{"success": true}')


def test_replicas_that_load_one_policy_at_once_have_a_copy_each(tmp_path: Path) -> None:
    async def scenario() -> list[bool]:
        both = asyncio.Barrier(2)
        replicas = [_Replica(tmp_path / f"{i}.log", both) for i in range(2)]
        loader = FileLoader("model", tmp_path / "merged", torch.float32)
        policy = replace(make_policy(make_run(), "solver", 1), adapter_uri=str(tmp_path / "1"))
        await asyncio.gather(*(loader.load(replica, policy, None) for replica in replicas))
        return [was for replica in replicas for was in replica.found]

    assert asyncio.run(scenario()) == [True, True]
    assert not list((tmp_path / "merged").iterdir())
