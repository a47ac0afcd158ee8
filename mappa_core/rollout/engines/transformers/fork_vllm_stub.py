"""Forks servers as `fork_server_script.py` does, that speak vLLM's HTTP over transformers."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

from mappa_core.models.serving.fork_server_script import serve_requests
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.engines.transformers.vllm_stub import Answer, Flags, VllmStub

HOLD = "hold"
"""A file beside the model; while it is there, completions wait."""
LATENCY_SECONDS = 0.2


class Slow(VllmStub):
    """Takes a while for each answer, so that there is a middle of a rollout."""

    async def _completed(self, body: dict[str, Any]) -> Answer:
        await asyncio.sleep(LATENCY_SECONDS)
        return await super()._completed(body)


async def serve(named: dict[str, str]) -> None:
    """Serve as vLLM's flags say."""
    model = Path(named["--model"])
    flags = Flags(
        model=model,
        name=named["--served-model-name"],
        max_model_len=int(named["--max-model-len"]),
        end_token_ids=ChatTokenizer(model).end_token_ids,
    )
    stub = Slow(flags, int(named["--port"]), named["--host"])
    await stub.start()
    while True:
        if model.joinpath(HOLD).exists():
            stub.hold.clear()
        else:
            stub.hold.set()
        await asyncio.sleep(0.02)


def main() -> None:
    """Fork servers until no more can be asked for."""
    arguments = serve_requests()
    if arguments is not None:
        asyncio.run(serve(dict(pairwise(arguments))))


if __name__ == "__main__":
    main()
