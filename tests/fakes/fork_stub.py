"""Forks servers as `fork_server_script.py` does, that speak vLLM's HTTP and compute nothing.

A script of its own: its tokens follow from a request's seed and prompt, so that whoever answers
a repeated request answers the same.
"""

import asyncio
import json
import random
import sys
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from aiohttp import web

from mappa_core.models.serving.fork_server_script import serve_requests

HOLD = "hold"
"""A file beside the model; while it is there, completions wait."""


MODEL = web.AppKey("model", Path)


async def completed(request: web.Request) -> web.Response:
    asked = await request.json()
    drawn = random.Random(f"{asked['seed']} {asked['prompt']}")
    tokens = [drawn.randrange(1000) for _ in range(asked["max_tokens"])]
    while request.app[MODEL].joinpath(HOLD).exists():
        await asyncio.sleep(0.05)
    choice = {
        "token_ids": tokens,
        "logprobs": {"token_logprobs": [-drawn.random() for _ in tokens]},
        "finish_reason": "length",
    }
    return web.Response(text=f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n")


async def done(request: web.Request) -> web.Response:
    return web.json_response({"success": True})


def main() -> None:
    arguments = serve_requests()
    if arguments is None:
        return
    named = dict(pairwise(arguments))
    app = web.Application()
    app[MODEL] = Path(named["--model"])
    app.router.add_post("/v1/completions", completed)
    app.router.add_route("*", "/{path:.*}", done)
    web.run_app(
        app, host=named["--host"], port=int(named["--port"]), print=None, shutdown_timeout=0
    )


if __name__ == "__main__":
    main()
