"""What we send to Gemini is what google-genai sends, and what comes back is read as it reads it."""

import asyncio
import json
from pathlib import Path

import httpx2
import pytest
from aiohttp import web
from google import genai
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from mappa_cli.provider_stub.contexts import Contexts
from mappa_cli.provider_stub.dialects import GEMINI, Tokens, as_bytes
from mappa_cli.provider_stub.server import StandIn, serving
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.prices import Usage
from mappa_core.coach.providers.gemini import gemini_provider, http_options, vertex_provider
from mappa_core.coach.providers.gemini_letters import KeepingTransport, Letter, Letters
from mappa_core.coach.providers.gemini_replies import read_answer
from mappa_core.coach.providers.provider import Final, Passing, ProviderError
from mappa_core.coach.replies import REPLY_SCHEMA
from tests.fakes.google_accounts import TokenOffice, open_office
from tests.fakes.recording import Recorder, recording

KEY = "a-key"
SYSTEM = "Judge by the rubric. " * 80
CACHED = {"context_cache": {"enabled": True, "minimum_tokens": 256}}
TEXTS = ("Case: 2 + 2", 'quoted "x" \\ \n\t', "é 漢字 🎉 \u2028", "a lone \ud83d surrogate")


def config_at(address: str, **settings: object) -> CoachModelConfig:
    return CoachModelConfig.model_validate(
        {"backend": "gemini", "model": "m", "base_url": address} | settings
    )


def plain_client(address: str) -> genai.Client:
    """google-genai by itself; over httpx2, because it subclasses aiohttp's session, which warns."""
    options = types.HttpOptions(
        base_url=address,
        api_version="v1beta",
        timeout=60_000,
        async_client_args={"transport": httpx2.AsyncHTTPTransport()},
    )
    return genai.Client(vertexai=False, api_key=KEY, http_options=options)


def test_a_copy_is_byte_for_byte_what_google_genai_sends_itself() -> None:
    recorder = Recorder()

    async def body() -> None:
        async with recording(recorder) as address:
            config = config_at(address, thinking_budget=64, temperature=0.3)
            provider = gemini_provider(config, KEY)
            for text in TEXTS:
                await provider.ask(SYSTEM, text, seed=3)
            await provider.close()
            client = plain_client(address)
            for text in TEXTS:
                await client.aio.models.generate_content(
                    model="m",
                    contents=text,
                    config=types.GenerateContentConfig(
                        system_instruction=SYSTEM,
                        temperature=0.3,
                        max_output_tokens=2048 + 64,
                        thinking_config=types.ThinkingConfig(thinking_budget=64),
                        response_mime_type="application/json",
                        response_json_schema=dict(REPLY_SCHEMA),
                        seed=3,
                    ),
                )
            await client.aio.aclose()

    asyncio.run(body())
    ours, theirs = recorder.asked[: len(TEXTS)], recorder.asked[len(TEXTS) :]
    assert len(theirs) == len(TEXTS)
    for (our_path, our_headers, our_body), (path, headers, sent) in zip(ours, theirs, strict=True):
        assert our_path == path
        assert our_body == sent
        assert {
            name: our_headers.get(name) for name in headers if name.startswith(("x-", "content-"))
        } == {name: value for name, value in headers.items() if name.startswith(("x-", "content-"))}
        assert our_headers["user-agent"] == headers["user-agent"]


@given(st.text())
def test_any_text_fits_a_letter(text: str) -> None:
    letter = Letter(url=URL(), headers={}, proxy=None, before=b'{"a": ', after=b"}", written_at=0.0)
    assert json.loads(letter.body(text)) == {"a": text}


ANSWERS = [
    GEMINI.answer("m", "text in two parts", Tokens(prompt=9, cached=4, reply=3, thought=2), False),
    GEMINI.answer("m", "cut", Tokens(prompt=9, reply=3), True),
    {"candidates": [{"content": {"role": "model"}, "finishReason": "MAX_TOKENS"}]},
    {"candidates": [{"finishReason": "STOP", "newField": [1]}], "serverTiming": {"ms": 3}},
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_are_read_as_google_genai_reads_them(answer: dict[str, object]) -> None:
    async def body() -> types.GenerateContentResponse:
        async def reply(request: web.Request) -> web.Response:
            return web.json_response(answer)

        app = web.Application()
        app.router.add_post("/{tail:.*}", reply)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        client = plain_client(f"http://{host}:{port}")
        try:
            return await client.aio.models.generate_content(model="m", contents="x")
        finally:
            await client.aio.aclose()
            await runner.cleanup()

    theirs, ours = asyncio.run(body()), read_answer(as_bytes(answer))
    assert ours.text == (theirs.text or "")
    assert ours.model_version == (theirs.model_version or "unknown")
    counted = theirs.usage_metadata
    assert ours.usage == (
        counted
        and Usage(
            prompt=counted.prompt_token_count or 0,
            cached=counted.cached_content_token_count or 0,
            reply=counted.candidates_token_count or 0,
            thought=counted.thoughts_token_count or 0,
        )
    )


def test_a_service_account_signs_for_its_tokens_and_letters_follow_them(tmp_path: Path) -> None:
    office, clock = TokenOffice(lasts_seconds=1), [0.0]

    async def body() -> list[str]:
        transport = KeepingTransport()
        async with open_office(office) as address:
            config = config_at(address, backend="vertex")
            file = office.account_file(tmp_path, address)
            provider = vertex_provider(config, "p", "global", file)
            credentials = provider._client._api_client._credentials  # noqa: SLF001
            client = genai.Client(
                vertexai=True,
                project="p",
                location="global",
                credentials=credentials,
                http_options=http_options(config, transport),
            )
            letters = Letters(client, transport, "m", now=lambda: clock[0])
            written = []
            for clock[0] in (0.0, 59.0, 61.0):
                letter = await letters.letter(("s", 0), types.GenerateContentConfig)
                written.append(letter.headers["authorization"])
            await provider.close()
            await client.aio.aclose()
        return written

    # The token ends at once; the letter is good for a minute and then carries another.
    assert asyncio.run(body()) == ["Bearer token-1", "Bearer token-1", "Bearer token-2"]
    assert office.claims[0]["iss"] == "coach@p.iam.gserviceaccount.com"
    assert "cloud-platform" in str(office.claims[0]["scope"])


def test_vertex_scores_with_a_service_account(tmp_path: Path) -> None:
    office = TokenOffice()

    async def body() -> None:
        stand_in = StandIn(key="token-1")
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
        stand_in = StandIn(key=KEY)
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
        assert all(reply.usage.cached == tokens for reply in replies)
        assert short.usage.cached == 0
        # Who made the cache was billed for it, nobody else.
        assert sorted(reply.usage.prompt for reply in replies) == [tokens] * 8 + [2 * tokens]
        billed = sum(reply.usage.prompt for reply in replies) + short.usage.prompt
        assert billed == stand_in.log.prompt_tokens

    asyncio.run(body())


def test_a_cache_that_was_lost_is_made_again() -> None:
    async def body() -> None:
        stand_in = StandIn(key=KEY)
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
        stand_in = StandIn(key="another")
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
        stand_in = StandIn(key="token-1")
        async with open_office(office) as tokens, serving(stand_in) as address:
            file = office.account_file(tmp_path, tokens)
            config = config_at(address, backend="vertex", **CACHED)
            provider = vertex_provider(config, "p", "global", file)
            reply = await provider.ask(SYSTEM, "1", seed=0)
            (name,) = stand_in.contexts.standing
            await provider.close()
        assert reply.usage.cached == len(SYSTEM) // 4
        assert name == "projects/p/locations/global/cachedContents/1"
        assert stand_in.contexts.standing == {}

    asyncio.run(body())
