"""`python -m mappa_cli.benches.engine_stub`: a server that speaks what a run uses of vLLM's HTTP.

It gives the same tokens to every request, as late as a model would, and computes nothing: what a
run costs beside it is the run's own.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

LISTEN_BACKLOG = 4096
PART_TOKENS = 32
"""In one part of an answer, as our own servers stream (`vllm/command.py`)."""


def answer(tokens: Sequence[int], most: int) -> tuple[bytes, ...]:
    """Write `tokens` as vLLM streams them, at most `most`, and the line that ends an answer."""
    given = tokens[:most]
    parts = [given[start : start + PART_TOKENS] for start in range(0, len(given), PART_TOKENS)]
    reason = "stop" if len(given) == len(tokens) else "length"
    events = [
        _event(part, reason if number == len(parts) - 1 else None)
        for number, part in enumerate(parts)
    ]
    return (*events, b"data: [DONE]\n\n")


def _event(part: Sequence[int], reason: str | None) -> bytes:
    choice = {
        "token_ids": part,
        # Of a token that alone may be drawn, which is what a run looks for at its start.
        "logprobs": {"token_logprobs": [0.0] * len(part)},
        "finish_reason": reason,
    }
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


@asynccontextmanager
async def serving(model: str, tokens: Sequence[int], latency: float) -> AsyncGenerator[str]:
    """Serve on this machine inside the block; yields the address."""

    async def completed(request: web.Request) -> web.StreamResponse:
        most = int((await request.json())["max_tokens"])
        response = web.StreamResponse()
        *parts, end = answer(tokens, most)
        await response.prepare(request)
        for part in parts:
            await asyncio.sleep(latency / len(parts))
            await response.write(part)
        await response.write(end)
        return response

    card = {"id": model, "root": model, "parent": None, "max_model_len": None}
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/completions", completed)
    app.router.add_get("/v1/models", partial(_said, {"data": [card]}))
    app.router.add_get("/health", partial(_said, {}))
    app.router.add_post("/v1/load_lora_adapter", partial(_said, {}))
    app.router.add_post("/v1/unload_lora_adapter", partial(_said, {}))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=LISTEN_BACKLOG).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def _said(said: object, request: web.Request) -> web.Response:  # noqa: ARG001
    return web.json_response(said)


def main() -> None:
    """Serve until the process is ended; prints the address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", required=True)
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of an answer")
    asyncio.run(_serve(parser.parse_args()))


async def _serve(arguments: argparse.Namespace) -> None:
    async with serving(arguments.model, arguments.tokens, arguments.latency) as address:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
