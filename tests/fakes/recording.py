"""A server that keeps every request as it came and gives one answer to all."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from mappa_cli.provider_stub.dialects import GEMINI, Dialect, Tokens
from tests.fakes.serving import serving


@dataclass
class Recorder:
    """Path, headers and body of each request."""

    dialect: Dialect = GEMINI
    asked: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append((request.path_qs, headers, await request.read()))
        answer = self.dialect.answer("m", "fine", Tokens(prompt=5, reply=1, thought=1), False)
        return web.json_response(answer)


@asynccontextmanager
async def recording(recorder: Recorder) -> AsyncGenerator[str]:
    """Serve on this machine inside the block; yields the address."""
    app = web.Application()
    app.router.add_post("/{tail:.*}", recorder.answer)
    async with serving(app) as address:
        yield address
