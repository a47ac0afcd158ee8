"""The stand-in's HTTP server: routes, keys, latency, faults, and a log of what it billed."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from aiohttp import web

from mappa_cli.provider_stub.contexts import CONTEXT_GONE, Contexts, context_named_in
from mappa_cli.provider_stub.dialects import (
    ANTHROPIC,
    GEMINI,
    OPENAI,
    RETRY_SECONDS,
    Body,
    Dialect,
    Tokens,
)
from mappa_cli.provider_stub.script import Fault, Question, Script, no_faults, reply_text

CHARACTERS_PER_TOKEN = 4
LISTEN_BACKLOG = 2048
LATE_SECONDS = 0.0015
"""How much later than a timer a client has its answer: the event loop waits whole milliseconds,
rounded up, and two sockets are crossed. `mappa bench coach` prints the latency that comes out."""
STATUSES = {
    Fault.RATE_LIMITED: (429, "RESOURCE_EXHAUSTED"),
    Fault.UNAVAILABLE: (503, "UNAVAILABLE"),
    Fault.INTERNAL: (500, "INTERNAL"),
    Fault.FORBIDDEN: (403, "PERMISSION_DENIED"),
    Fault.NOT_FOUND: (404, "NOT_FOUND"),
}


@dataclass
class Log:
    """What was asked and billed, added up; it does not grow with the calls, and is `GET /log`."""

    calls: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reply_tokens: int = 0
    thought_tokens: int = 0
    keys_in_urls: int = 0
    caches: int = 0
    in_flight: int = 0
    most_in_flight: int = 0

    def bill(self, tokens: Tokens) -> None:
        """An answer with usage went out."""
        self.prompt_tokens += tokens.prompt
        self.cached_tokens += tokens.cached
        self.reply_tokens += tokens.reply
        self.thought_tokens += tokens.thought


class ProviderStub:
    """Answers like Gemini, Vertex AI, OpenAI-compatible servers and Anthropic."""

    def __init__(
        self,
        script: Script = no_faults,
        *,
        key: str | None = None,
        latency_seconds: float = 0.0,
        slow_seconds: float = 1.0,
    ) -> None:
        self.script, self.log = script, Log()
        self._key, self._latency, self._slow = key, latency_seconds, slow_seconds
        self._systems: set[str] = set()
        self.contexts = Contexts()

    def application(self) -> web.Application:
        """The routes of all dialects."""
        app = web.Application(client_max_size=2**24)
        vertex = "/{version}/projects/{project}/locations/{location}"
        models = ("/{version}/models/", vertex + "/publishers/google/models/")
        for prefix, of_model in zip(("/{version}", vertex), models, strict=True):
            answer_gemini = partial(self._answer, GEMINI)
            app.router.add_post(of_model + "{model}:generateContent", answer_gemini)
            app.router.add_post(prefix + "/cachedContents", self._keep)
            app.router.add_delete(prefix + "/cachedContents/{cache}", self._drop)
        app.router.add_post("/v1/chat/completions", partial(self._answer, OPENAI))
        app.router.add_post("/v1/messages", partial(self._answer, ANTHROPIC))
        app.router.add_get("/log", self._totals)
        return app

    async def _keep(self, request: web.Request) -> web.StreamResponse:
        if not self._may(request, GEMINI):
            return _error(GEMINI, 401, "UNAUTHENTICATED", "API key not valid.")
        kept = self.contexts.keep(await request.json(), request.path)
        if kept is None:
            return _error(GEMINI, 400, "INVALID_ARGUMENT", "Cached content is too small.")
        self.log.caches += 1
        self.log.bill(Tokens(prompt=kept.tokens))
        return web.json_response(kept.as_json())

    async def _drop(self, request: web.Request) -> web.StreamResponse:
        if not self.contexts.drop(request.path):
            return _error(GEMINI, 404, "NOT_FOUND", CONTEXT_GONE)
        return web.json_response({})

    async def _totals(self, request: web.Request) -> web.Response:  # noqa: ARG002
        return web.json_response(vars(self.log))

    async def _answer(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        due = asyncio.get_running_loop().time() + self._latency
        number, self.log.calls = self.log.calls, self.log.calls + 1
        self.log.keys_in_urls += "key" in request.query
        self.log.in_flight += 1
        self.log.most_in_flight = max(self.log.most_in_flight, self.log.in_flight)
        try:
            body = cast("Body", await request.json())
            named = request.match_info.get("model") or str(body.get("model", ""))
            if not self._may(request, dialect):
                return _error(dialect, 401, "UNAUTHENTICATED", "API key not valid.")
            if (name := context_named_in(body)) is not None:
                if (kept := self.contexts.find(name)) is None:
                    return _error(dialect, 403, "PERMISSION_DENIED", CONTEXT_GONE)
                body["systemInstruction"] = kept.system
                self._systems.add(kept.text)
            question = dialect.question(body)
            fault = self.script(question, number)
            self.log.faults[fault.value] += 1
            return await self._under(fault, request, dialect, named, question, due)
        finally:
            self.log.in_flight -= 1

    def _may(self, request: web.Request, dialect: Dialect) -> bool:
        sent = request.headers.get(dialect.key_header) or request.headers.get("authorization", "")
        return self._key is None or sent.removeprefix("Bearer ") == self._key

    async def _under(
        self,
        fault: Fault,
        request: web.Request,
        dialect: Dialect,
        model: str,
        question: Question,
        due: float,
    ) -> web.StreamResponse:
        """The answer at the moment it is due; what it takes to make it is part of the latency."""
        if fault is Fault.HANGING:
            await asyncio.Event().wait()
        if (failure := _failure(fault, dialect)) is not None:
            await _until(due)
            return failure
        text = reply_text(question, fault)
        tokens = self._tokens(question, "" if fault is Fault.BLOCKED else text)
        if fault is Fault.BLOCKED:
            answer = dialect.blocked(model, tokens)
        else:
            answer = dialect.answer(model, text, tokens, fault is Fault.TRUNCATED)
        response = web.json_response(answer)
        await _until(due + (self._slow if fault is Fault.SLOW else 0.0))
        if fault is Fault.CUT_CONNECTION:
            return await _cut(request, json.dumps(answer).encode())
        self.log.bill(tokens)
        return response

    def _tokens(self, question: Question, text: str) -> Tokens:
        """What a call is billed: its characters by four; a system text seen before is cached."""
        seen = question.system in self._systems
        self._systems.add(question.system)
        system, user = (_tokens_in(part) for part in (question.system, question.user))
        return Tokens(
            prompt=system + user,
            cached=system if seen else 0,
            reply=_tokens_in(text),
            thought=question.thinking_budget // 2,
        )


@asynccontextmanager
async def serving(stand_in: ProviderStub, port: int = 0) -> AsyncGenerator[str]:
    """Serve on this machine inside the block; yields the address."""
    runner = web.AppRunner(
        stand_in.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=LISTEN_BACKLOG)
        await site.start()
        host, bound = runner.addresses[0][:2]
        yield f"http://{host}:{bound}"
    finally:
        await runner.cleanup()


async def _until(due: float) -> None:
    """Wait for a moment of the loop's clock."""
    left = due - asyncio.get_running_loop().time() - LATE_SECONDS
    if left > 0:
        await asyncio.sleep(left)


def _failure(fault: Fault, dialect: Dialect) -> web.Response | None:
    """What comes instead of an answer, where something does."""
    if fault in STATUSES:
        status, name = STATUSES[fault]
        return _error(dialect, status, name, f"scripted fault: {fault.value}")
    if fault is Fault.BAD_GATEWAY:
        page = "<html><body><h1>502 Bad Gateway</h1></body></html>"
        return web.Response(status=502, text=page, content_type="text/html")
    return None


def _tokens_in(text: str) -> int:
    return len(text) // CHARACTERS_PER_TOKEN


def _error(dialect: Dialect, status: int, name: str, message: str) -> web.Response:
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 429 else None
    return web.json_response(dialect.error(status, name, message), status=status, headers=headers)


async def _cut(request: web.Request, body: bytes) -> web.StreamResponse:
    """Half of the body, and then the connection ends."""
    response = web.StreamResponse(headers={"Content-Length": str(len(body))})
    response.content_type = "application/json"
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.abort()
    return response
