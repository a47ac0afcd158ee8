"""What a server is asked when it is to read a checkpoint itself, and what its refusal comes to."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.models.serving.client import Reply
from mappa_core.models.serving.server import OwnServer
from mappa_core.rollout.engines.vllm.weight_loaders import CheckpointLoader, WeightsUnchanged
from tests.builders import make_policy, make_run

BASE = make_policy(make_run(), "solver")
TRAINED = replace(BASE, step=1, adapter_uri="/checkpoints/1")


class _Server(OwnServer):
    """Writes down what it is asked; its workers may refuse."""

    def __init__(self, *refusals: str) -> None:
        super().__init__(Path("log"))
        self.asked: list[tuple[str, Mapping[str, object]]] = []
        self._refusals = refusals or ("", "")

    async def start(self, seconds: float) -> None: ...

    async def stop(self) -> None: ...

    async def post(self, path: str, body: Mapping[str, object]) -> Reply:
        self.asked.append((path, body))
        rpc = path == "/collective_rpc"
        said = {"results": self._refusals} if rpc else {"success": True}
        return Reply(status=200, body=json.dumps(said).encode())


def _read(checkpoint: str) -> tuple[str, Mapping[str, object]]:
    return "/collective_rpc", {
        "method": "serve_checkpoint",
        "kwargs": {"checkpoint": checkpoint},
    }


@pytest.mark.parametrize(
    ("policy", "old", "read"),
    [
        (BASE, None, []),
        (TRAINED, BASE, [_read("/checkpoints/1")]),
        (BASE, TRAINED, [_read("")]),
    ],
)
def test_a_server_reads_what_it_has_not_and_forgets_what_it_cached(
    policy: PolicyVersion, old: PolicyVersion | None, read: list[tuple[str, Mapping[str, object]]]
) -> None:
    server = _Server()
    asyncio.run(CheckpointLoader().load(server, policy, old))
    assert server.asked == [each for one in read for each in (one, ("/reset_prefix_cache", {}))]


def test_what_no_worker_can_read_leaves_the_old_weights() -> None:
    server = _Server("it is damaged", "it is damaged")
    told = "cannot serve solver's weights /checkpoints/1: it is damaged"
    with pytest.raises(WeightsUnchanged, match=told):
        asyncio.run(CheckpointLoader().load(server, TRAINED, BASE))
    assert server.asked == [_read("/checkpoints/1")]


def test_what_only_some_workers_can_read_leaves_no_known_weights() -> None:
    with pytest.raises(EngineError, match="it is damaged") as told:
        asyncio.run(CheckpointLoader().load(_Server("", "it is damaged"), TRAINED, BASE))
    assert not isinstance(told.value, WeightsUnchanged)
