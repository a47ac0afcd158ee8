"""A server that speaks what a run uses of vLLM's HTTP, over the transformers engine.

It samples the same in any company, bit for bit, and is there within seconds: for tests and
`mappa bench cluster`. Its refusals are in vLLM's words and status codes, which tests/integration
holds against vLLM.
"""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

from transformers import PreTrainedModel

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import (
    Completion,
    GenerationRequest,
    PolicyVersion,
    Sampling,
)
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.transformers.engine import TransformersEngine

Answer = tuple[HTTPStatus, object]
NO_ROUTE: Answer = (HTTPStatus.NOT_FOUND, {"detail": "Not Found"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """What such a server is started with."""

    model: Path
    name: str = ""
    max_model_len: int = 512
    processed_logprobs: bool = True
    lora: bool = True
    updating: bool = True
    max_lora_rank: int = 16
    end_token_ids: tuple[int, ...] = (2,)


_READING = Lock()


class _Engine(TransformersEngine):
    """Reads one model after another: transformers cannot read two at once in one process."""

    def _read_base(self) -> PreTrainedModel:
        with _READING:
            return super()._read_base()


class VllmStub:
    """Listens on a port of the loopback, in the event loop that it is started in."""

    def __init__(self, flags: Flags, port: int = 0, host: str = "127.0.0.1") -> None:
        self.flags, self.port, self.host = flags, port, host
        self.sampled: list[str] = []
        """The models that completions were asked of, in this order."""
        self.hold = asyncio.Event()
        """Until it is set, completions wait."""
        self.hold.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._adapters: dict[str, PolicyVersion] = {}
        self._base = self._policy("base", None)
        config = EngineConfig(device="cpu", dtype="float32", max_model_length=flags.max_model_len)
        self._engine = _Engine(flags.model, config, flags.end_token_ids)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self.host}:{self.port}"

    @property
    def adapters(self) -> tuple[str, ...]:
        """Name those that were loaded."""
        return tuple(self._adapters)

    async def start(self) -> None:
        """Read the model, then listen."""
        await self._engine.start()
        await self._engine.load(self._base)
        self._server = await asyncio.start_server(self._connected, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """Break off all connections, and listen no more; a new start knows no adapter."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._adapters.clear()
        self.hold.set()
        await self._engine.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, path, _ = head[0].split()
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            status, said = await self._answer(f"{method} {path}", json.loads(body or b"{}"))
            text = said if isinstance(said, bytes) else json.dumps(said).encode()
            line = f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\n\r\n"
            writer.write(line.encode() + text)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, asked: str, body: dict[str, Any]) -> Answer:
        if asked == "GET /health":
            return HTTPStatus.OK, {}
        if asked == "GET /v1/models":
            return HTTPStatus.OK, {"data": self._cards()}
        if asked == "POST /v1/completions":
            return await self._completed(body)
        if not self.flags.updating:
            return NO_ROUTE
        if asked == "POST /v1/load_lora_adapter":
            return await self._loaded(body["lora_name"], body["lora_path"])
        if asked == "POST /v1/unload_lora_adapter":
            if self._adapters.pop(body["lora_name"], None) is None:
                return _refused(HTTPStatus.NOT_FOUND, "The lora adapter cannot be found.")
            return HTTPStatus.OK, {}
        return NO_ROUTE

    def _cards(self) -> Sequence[Mapping[str, object]]:
        root, name = str(self.flags.model), self.flags.name or str(self.flags.model)
        base = {"id": name, "root": root, "max_model_len": self.flags.max_model_len}
        adapters = [{"id": adapter, "root": "", "parent": name} for adapter in self._adapters]
        return [base | {"parent": None}, *adapters]

    async def _loaded(self, name: str, path: str) -> Answer:
        failed = HTTPStatus.INTERNAL_SERVER_ERROR
        if not self.flags.lora:
            return _refused(failed, "LoRA is not enabled. Use --enable-lora to enable LoRA.")
        if name in self._adapters:
            said = f"The lora adapter '{name}' has already been loaded."
            return _refused(HTTPStatus.BAD_REQUEST, said)
        file = Path(path) / "adapter_config.json"
        if not file.exists():
            said = f"Loading lora {name} failed: No adapter found for {path}"
            return _refused(HTTPStatus.NOT_FOUND, said)
        rank = json.loads(file.read_text())["r"]
        if rank > self.flags.max_lora_rank:
            said = f"LoRA rank {rank} is greater than max_lora_rank {self.flags.max_lora_rank}."
            return _refused(failed, said)
        policy = self._policy(name, path)
        try:
            await self._engine.load(policy)
        except EngineError as error:
            return _refused(failed, str(error))
        self._adapters[name] = policy
        return HTTPStatus.OK, {}

    async def _completed(self, body: dict[str, Any]) -> Answer:
        base = body["model"] in (self.flags.name, str(self.flags.model))
        if not base and body["model"] not in self._adapters:
            said = f"The model `{body['model']}` does not exist."
            return _refused(HTTPStatus.NOT_FOUND, said)
        self.sampled.append(body["model"])
        await self.hold.wait()
        alone = body["top_k"] == 1
        sampling = Sampling(
            temperature=0.0 if alone else body["temperature"],
            top_p=body["top_p"],
            max_tokens=body["max_tokens"],
        )
        request = GenerationRequest(
            policy=self._base if base else self._adapters[body["model"]],
            prompt_token_ids=tuple(body["prompt"]),
            sampling=sampling,
            seed=body["seed"],
        )
        done = await self._engine.generate(request)
        if alone and self.flags.processed_logprobs:
            # Of the one token that may be drawn.
            done = replace(done, logprobs=(0.0,) * len(done.token_ids))
        return HTTPStatus.OK, _events(done)

    def _policy(self, name: str, path: str | None) -> PolicyVersion:
        model = str(self.flags.model)
        return PolicyVersion(
            id=uuid4(), run_id=uuid4(), agent=name, step=0, base_model=model, adapter_uri=path
        )


def free_port() -> int:
    """Find a port of the loopback that nothing listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def _events(done: Completion) -> bytes:
    """Write an answer in two parts, as a server with a short stream interval would."""
    half = len(done.token_ids) // 2
    parts = [(slice(0, half), None), (slice(half, None), done.finish_reason.value)]
    events = [
        {
            "choices": [
                {
                    "token_ids": done.token_ids[part],
                    "logprobs": {"token_logprobs": done.logprobs[part]},
                    "finish_reason": reason,
                }
            ]
        }
        for part, reason in parts
    ]
    told = [json.dumps(event) for event in events] + ["[DONE]"]
    return "".join(f"data: {one}\n\n" for one in told).encode()


def _refused(status: HTTPStatus, said: str) -> Answer:
    return status, {"error": {"message": said, "code": status.value}}
