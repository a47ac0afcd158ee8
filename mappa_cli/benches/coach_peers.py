"""What the coach's throughput is compared with: the least that a client can do, and the peer.

bare client    HTTP/1.1 by aiohttp, and nothing made of the answers: what it reaches is what this
               machine and the stand-in allow
google-genai   its own asynchronous calls, made as its manual says
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import ClientSession, TCPConnector
from google import genai
from google.genai import types

from mappa_core.coach.evidence import CoachPrompt
from mappa_core.coach.replies import REPLY_SCHEMA

Send = Callable[[CoachPrompt], Awaitable[None]]


async def seconds_of(send: Send, prompts: Sequence[CoachPrompt], concurrency: int) -> float:
    """How long `send` takes for all prompts, on warm connections."""
    calls = asyncio.Semaphore(concurrency)

    async def one(prompt: CoachPrompt) -> None:
        async with calls:
            await send(prompt)

    await asyncio.gather(*(one(prompt) for prompt in prompts[:concurrency]))
    started = time.perf_counter()
    await asyncio.gather(*(one(prompt) for prompt in prompts))
    return time.perf_counter() - started


@asynccontextmanager
async def bare_client(url: str, body: Callable[[CoachPrompt], bytes]) -> AsyncGenerator[Send]:
    """Posts each prompt's ready-made body to `url` and reads the answer's bytes."""
    async with ClientSession(connector=TCPConnector(limit=0)) as session:

        async def send(prompt: CoachPrompt) -> None:
            async with session.post(url, data=body(prompt)) as answer:
                await answer.read()

        yield send


@asynccontextmanager
async def google_genai(address: str) -> AsyncGenerator[Send]:
    """Sends requests as google-genai does by itself."""
    options = types.HttpOptions(base_url=address, api_version="v1beta", timeout=60_000)
    client = genai.Client(vertexai=False, api_key="no-key-needed", http_options=options)

    async def send(prompt: CoachPrompt) -> None:
        await client.aio.models.generate_content(
            model="stand-in",
            contents=prompt.user,
            config=types.GenerateContentConfig(
                system_instruction=prompt.system,
                temperature=0.0,
                max_output_tokens=2048,
                response_mime_type="application/json",
                response_json_schema=dict(REPLY_SCHEMA),
                seed=0,
            ),
        )

    try:
        yield send
    finally:
        await client.aio.aclose()
