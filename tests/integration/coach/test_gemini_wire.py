"""What is sent to Gemini through google-genai, what comes back, and how it refuses."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from mappa_cli.provider_stub.contexts import Contexts
from mappa_cli.provider_stub.dialects import GEMINI, Tokens
from mappa_cli.provider_stub.server import ProviderStub, serving
from mappa_core.coach.budget import Usage
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.providers.gemini import gemini_provider, vertex_provider
from mappa_core.coach.providers.provider import Final, Passing, ProviderError, ProviderReply
from mappa_core.coach.replies import REPLY_SCHEMA
from tests.fakes.google_accounts import TokenOffice, open_office
from tests.fakes.recording import Recorder, recording
from tests.fakes.serving import serving as serving_application

KEY = "a-key"
SYSTEM = "Judge by the rubric. " * 80
CACHED = {"context_cache": {"enabled": True, "minimum_tokens": 256}}
TEXTS = ("Case: 2 + 2", 'quoted "x" \\ \n\t', "é 漢字 🎉 \u2028", "a lone \ud83d surrogate")


def config_at(address: str, **settings: object) -> CoachModelConfig:
    return CoachModelConfig.model_validate(
        {"backend": "gemini", "model": "m", "base_url": address} | settings
    )


def test_a_request_carries_the_rubric_the_case_and_the_settings() -> None:
    recorder = Recorder()

    async def body() -> None:
        async with recording(recorder) as address:
            provider = gemini_provider(config_at(address, thinking_budget=64, temperature=0.3), KEY)
            for text in TEXTS:
                await provider.ask(SYSTEM, text, seed=3)
            await provider.close()

    asyncio.run(body())
    assert len(recorder.asked) == len(TEXTS)
    for text, (path, headers, sent) in zip(TEXTS, recorder.asked, strict=True):
        assert path == "/v1beta/models/m:generateContent"
        assert headers["x-goog-api-key"] == KEY
        asked = json.loads(sent)
        question = GEMINI.question(asked)
        assert (question.system, question.user) == (SYSTEM, text)
        assert (question.max_output_tokens, question.thinking_budget) == (2048 + 64, 64)
        assert asked["generationConfig"]["temperature"] == 0.3
        assert asked["generationConfig"]["seed"] == 3
        assert asked["generationConfig"]["responseJsonSchema"] == dict(REPLY_SCHEMA)


SPENT = Tokens(prompt=9, cached=4, reply=3, thought=2)
ANSWERS = [
    (
        GEMINI.answer("m", "text in two parts", SPENT, False),
        "text in two parts",
        Usage(prompt=9, cached=4, reply=3, thought=2),
    ),
    (
        GEMINI.answer("m", "cut", Tokens(prompt=9, reply=3), True),
        "cut",
        Usage(prompt=9, reply=3),
    ),
    ({"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]}, "", None),
    ({"candidates": [{"finishReason": "STOP", "newField": [1]}], "timing": {"ms": 3}}, "", None),
]


@pytest.mark.parametrize(("answer", "text", "usage"), ANSWERS)
def test_answers_are_read_with_or_without_what_google_may_leave_out(
    answer: dict[str, object], text: str, usage: Usage | None
) -> None:
    async def reply(request: web.Request) -> web.Response:
        return web.json_response(answer)

    async def body() -> ProviderReply:
        app = web.Application()
        app.router.add_post("/{tail:.*}", reply)
        async with serving_application(app) as address:
            provider = gemini_provider(config_at(address), KEY)
            try:
                return await provider.ask(SYSTEM, "x", seed=0)
            finally:
                await provider.close()

    read = asyncio.run(body())
    assert (read.text, read.usage) == (text, usage)
    assert read.model_version in ("m-stub-001", "unknown")


@pytest.mark.parametrize(
    ("status", "headers", "body", "reason", "seconds"),
    [
        (
            429,
            {"Retry-After": "7"},
            {"error": {"status": "X", "message": "slow"}},
            "rate_limited",
            7,
        ),
        (429, {"Retry-After": "7"}, GEMINI.error(429, "X", "slow"), "rate_limited", 0.05),
        (503, {"Retry-After": "soon"}, {"error": {}}, "error", None),
        (500, {}, ["odd"], "error", None),
    ],
)
def test_a_refusal_says_when_to_come_back(
    status: int, headers: dict[str, str], body: object, reason: str, seconds: float | None
) -> None:
    calls: list[str] = []

    async def reply(request: web.Request) -> web.Response:
        calls.append(request.path)
        return web.json_response(body, status=status, headers=headers)

    async def ask() -> Passing:
        app = web.Application()
        app.router.add_post("/{tail:.*}", reply)
        async with serving_application(app) as address:
            provider = gemini_provider(config_at(address), KEY)
            with pytest.raises(Passing) as refused:
                await provider.ask(SYSTEM, "x", seed=0)
            await provider.close()
            return refused.value

    error = asyncio.run(ask())
    assert (error.reason, error.retry_after_seconds) == (reason, seconds)
    # google-genai's own retries are off.
    assert len(calls) == 1


def test_a_redirect_is_not_followed_with_the_key() -> None:
    elsewhere: list[str] = []

    async def reply(request: web.Request) -> web.Response:
        if "elsewhere" in request.path:
            elsewhere.append(request.path)
        return web.Response(status=307, headers={"Location": "/elsewhere"})

    async def body() -> None:
        app = web.Application()
        app.router.add_post("/{tail:.*}", reply)
        async with serving_application(app) as address:
            provider = gemini_provider(config_at(address), KEY)
            with pytest.raises(Final):
                await provider.ask(SYSTEM, "x", seed=0)
            await provider.close()

    asyncio.run(body())
    assert elsewhere == []


def test_a_service_account_signs_for_its_tokens_and_renews_them(tmp_path: Path) -> None:
    # A token that ends at once is renewed for each call.
    office, recorder = TokenOffice(lasts_seconds=1), Recorder()

    async def body() -> None:
        async with open_office(office) as tokens, recording(recorder) as address:
            file = office.account_file(tmp_path, tokens)
            provider = vertex_provider(config_at(address, backend="vertex"), "p", "global", file)
            for _ in range(2):
                await provider.ask("s", "u", seed=0)
            await provider.close()

    asyncio.run(body())
    bearers = [headers["authorization"] for _, headers, _ in recorder.asked]
    assert bearers == ["Bearer token-1", "Bearer token-2"]
    assert office.claims[0]["iss"] == "coach@p.iam.gserviceaccount.com"
    assert "cloud-platform" in str(office.claims[0]["scope"])


def test_vertex_scores_with_a_service_account(tmp_path: Path) -> None:
    office = TokenOffice()

    async def body() -> None:
        stand_in = ProviderStub(key="token-1")
        async with open_office(office) as tokens, serving(stand_in) as address:
            file = office.account_file(tmp_path, tokens)
            provider = vertex_provider(config_at(address, backend="vertex"), "p", "global", file)
            replies = await asyncio.gather(*(provider.ask("s", f"{n}", seed=n) for n in range(8)))
            await provider.close()
        assert all(reply.text for reply in replies)
        assert stand_in.log.keys_in_urls == 0

    asyncio.run(body())
    assert office.handed_out == ["token-1"]


@pytest.mark.parametrize("cache", [{}, CACHED], ids=["plain", "cached"])
def test_an_account_that_is_refused_is_final_and_says_no_secret(
    tmp_path: Path, cache: dict[str, object]
) -> None:
    office = TokenOffice()

    async def body() -> ProviderError:
        async with open_office(office) as address:
            file = office.account_file(tmp_path, f"{address}/nowhere")
            config = config_at(address, backend="vertex", **cache)
            provider = vertex_provider(config, "p", "global", file)
            try:
                with pytest.raises(ProviderError) as refused:
                    await provider.ask(SYSTEM, "u", seed=0)
            finally:
                await provider.close()
            return refused.value

    error = asyncio.run(body())
    assert error.reason == "refused"
    assert "no access token" in str(error)
    assert "PRIVATE KEY" not in str(error)


def test_a_long_rubric_is_kept_at_the_provider_named_and_deleted() -> None:
    async def body() -> None:
        stand_in = ProviderStub(key=KEY)
        async with serving(stand_in) as address:
            provider = gemini_provider(config_at(address, **CACHED), KEY)
            replies = await asyncio.gather(
                *(provider.ask(SYSTEM, f"{n}", seed=0) for n in range(9))
            )
            assert stand_in.log.caches == 1
            assert len(stand_in.contexts.standing) == 1
            short = await provider.ask("A short rubric.", "x", seed=0)
            await provider.close()
        assert stand_in.contexts.standing == {}
        tokens = len(SYSTEM) // 4
        usages = [reply.usage or Usage() for reply in (*replies, short)]
        assert [usage.cached for usage in usages] == [tokens] * 9 + [0]
        # The call that made the cache was billed for it, and no other.
        prompts = [usage.prompt for usage in usages]
        assert sorted(prompts[:9]) == [tokens] * 8 + [2 * tokens]
        assert sum(prompts) == stand_in.log.prompt_tokens

    asyncio.run(body())


@pytest.mark.parametrize(("ttl_seconds", "made"), [(300, 2), (600, 1)])
def test_a_cache_that_could_end_within_a_call_is_made_anew(ttl_seconds: int, made: int) -> None:
    cached = {"context_cache": CACHED["context_cache"] | {"ttl_seconds": ttl_seconds}}

    async def body() -> None:
        stand_in = ProviderStub(key=KEY)
        async with serving(stand_in) as address:
            config = config_at(address, attempt_seconds=300, **cached)
            provider = gemini_provider(config, KEY)
            for text in ("1", "2"):
                await provider.ask(SYSTEM, text, seed=0)
            ends = {context.ends_at for context in stand_in.contexts.standing.values()}
            assert max(ends) - stand_in.contexts.now() == pytest.approx(ttl_seconds, abs=60)
            await provider.close()
        assert stand_in.log.caches == made

    asyncio.run(body())


def test_a_cache_that_was_lost_is_made_again() -> None:
    async def body() -> None:
        stand_in = ProviderStub(key=KEY)
        async with serving(stand_in) as address:
            provider = gemini_provider(config_at(address, **CACHED), KEY)
            await provider.ask(SYSTEM, "1", seed=0)
            stand_in.contexts = Contexts()
            with pytest.raises(Passing, match="CachedContent"):
                await provider.ask(SYSTEM, "2", seed=0)
            assert (await provider.ask(SYSTEM, "2", seed=0)).text
            await provider.close()
        assert stand_in.log.caches == 2

    asyncio.run(body())


def test_a_cache_that_cannot_be_made_says_so() -> None:
    async def body() -> None:
        stand_in = ProviderStub(key="another")
        async with serving(stand_in) as address:
            provider = gemini_provider(config_at(address, **CACHED), KEY)
            with pytest.raises(Final, match="no context cache") as refused:
                await provider.ask(SYSTEM, "1", seed=0)
            assert KEY not in str(refused.value)
            await provider.close()
            small = config_at(address, context_cache={"enabled": True, "minimum_tokens": 1})
            provider = gemini_provider(small, "another")
            with pytest.raises(Final, match="too small"):
                await provider.ask("short", "1", seed=0)
            await provider.close()

    asyncio.run(body())


def test_vertex_keeps_caches_under_its_own_path(tmp_path: Path) -> None:
    office = TokenOffice()

    async def body() -> None:
        stand_in = ProviderStub(key="token-1")
        async with open_office(office) as tokens, serving(stand_in) as address:
            file = office.account_file(tmp_path, tokens)
            config = config_at(address, backend="vertex", **CACHED)
            provider = vertex_provider(config, "p", "global", file)
            reply = await provider.ask(SYSTEM, "1", seed=0)
            (name,) = stand_in.contexts.standing
            await provider.close()
        assert reply.usage is not None
        assert reply.usage.cached == len(SYSTEM) // 4
        assert name == "projects/p/locations/global/cachedContents/1"
        assert stand_in.contexts.standing == {}

    asyncio.run(body())
