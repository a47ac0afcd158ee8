"""Real client libraries against the stand-in server: faults, totals, secrets."""

import asyncio
import gc
import logging
import re
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mappa_cli.provider_stub.script import (
    Fault,
    Question,
    Script,
    no_faults,
    score_of,
    seeded_faults,
)
from mappa_cli.provider_stub.server import ProviderStub, serving
from mappa_core.app.checks import coached_team
from mappa_core.coach.budget import Budget, Usage, cost
from mappa_core.coach.config import BudgetConfig, CoachModelConfig
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.opening import check_coach, open_provider
from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.coach.providers.gemini import GeminiProvider, vertex_provider
from mappa_core.coach.providers.provider import Provider
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.scores import CoachScore, Unscored
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams import load_team
from tests.unit.coach.cases import make_case

KEY = "AIza-very-secret-key-0123456789"
RUBRICS = load_rubrics("mathchat", "paper-1")
PRICES = {"input_usd": 0.30, "cached_usd": 0.075, "output_usd": 2.50}
Results = list[CoachScore | Unscored]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in BACKENDS:
        monkeypatch.setenv(PROVIDERS[backend].needs or "", KEY)


def make_provider(config: CoachModelConfig) -> Provider:
    return open_provider(config, Settings())


@asynccontextmanager
async def coached(
    backend: str, script: Script = no_faults, *, key: str | None = KEY, **settings: Any
) -> AsyncGenerator[tuple[LlmCoach, ProviderStub]]:
    stand_in = ProviderStub(script, key=key, slow_seconds=0.2)
    async with serving(stand_in) as address:
        base = f"{address}/v1" if PROVIDERS[backend].wire == "openai" else address
        config = CoachModelConfig.model_validate(
            {"backend": backend, "model": "test-model", "base_url": base, "prices": PRICES}
            | settings
        )
        coach = LlmCoach(make_provider(config), RUBRICS, config, Budget(BudgetConfig()))
        try:
            yield coach, stand_in
        finally:
            await coach.close()


async def scores(coach: LlmCoach, count: int) -> Results:
    return await asyncio.gather(*(coach.score(make_case(f"Plan {n}.")) for n in range(count)))


# Vertex AI signs its requests, a local coach starts its server: tests of their own look after them.
BACKENDS = tuple(name for name in PROVIDERS if name not in ("vertex", "local"))
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@each_backend
def test_only_a_judgement_is_held_to_its_form(backend: str) -> None:
    held: list[bool] = []

    def script(question: Question, number: int) -> Fault:
        held.append(question.structured)
        return no_faults(question, number)

    async def body() -> None:
        async with coached(backend, script, own_solution=True) as (coach, _):
            assert isinstance(await coach.score(make_case()), CoachScore)

    asyncio.run(body())
    # Anthropic's interface has no form that it would hold a reply to.
    assert held == [False, backend != "anthropic"]


@each_backend
def test_a_solution_that_was_cut_is_none(backend: str) -> None:
    async def body() -> CoachScore | Unscored:
        async with coached(backend, lambda *_: Fault.TRUNCATED, own_solution=True) as (coach, _):
            return await coach.score(make_case())

    score = asyncio.run(body())
    assert isinstance(score, Unscored)
    assert score.reason == "unparsable"
    assert re.match(r"its own solution: cut at \d+ tokens: raise max_output_tokens", score.detail)
    assert score.attempts == 1


@each_backend
def test_a_real_client_gets_a_score(backend: str) -> None:
    async def body() -> None:
        async with coached(backend, thinking_budget=64 if backend == "gemini" else None) as pair:
            coach, stand_in = pair
            first = await coach.score(make_case())
            second = await coach.score(make_case("Divide."))
        assert isinstance(first, CoachScore)
        assert isinstance(second, CoachScore)
        assert first.model_version == "test-model-stub-001"
        assert first.criteria[0].name == "overall"
        assert first.cached_tokens == 0
        # The rubric is the shared prefix; the second call finds it cached.
        assert second.cached_tokens
        assert second.cached_tokens > 500
        assert first.thought_tokens == (32 if backend == "gemini" else 0)
        assert stand_in.log.calls == 2
        assert stand_in.log.keys_in_urls == 0

    asyncio.run(body())


@each_backend
@pytest.mark.parametrize(
    ("fault", "reason", "calls"),
    [
        (Fault.FORBIDDEN, "refused", 1),
        (Fault.NOT_FOUND, "refused", 1),
        (Fault.BLOCKED, "blocked", 1),
        (Fault.TRUNCATED, "unparsable", 2),
        (Fault.PROSE, "unparsable", 2),
        (Fault.WRONG_SCORE, "unparsable", 2),
        (Fault.RATE_LIMITED, "rate_limited", None),
        (Fault.UNAVAILABLE, "error", None),
        (Fault.INTERNAL, "error", None),
        (Fault.BAD_GATEWAY, "error", None),
        (Fault.CUT_CONNECTION, "error", None),
        (Fault.HANGING, "timeout", None),
    ],
)
def test_every_fault_ends_with_its_reason(
    backend: str, fault: Fault, reason: str, calls: int | None
) -> None:
    async def body() -> tuple[CoachScore | Unscored, ProviderStub]:
        script = lambda question, number: fault  # noqa: E731  # pyright: ignore[reportUnknownLambdaType]
        # Only what hangs may be late, and not before it was asked: this machine may be busy.
        hangs = fault is Fault.HANGING
        limits = {
            "deadline_seconds": 2.5 if hangs else 0.4,
            "attempt_seconds": 1.0 if hangs else 30.0,
        }
        async with coached(backend, script, **limits) as (coach, stand_in):  # pyright: ignore[reportArgumentType]
            return await coach.score(make_case()), stand_in

    unscored, stand_in = asyncio.run(body())
    assert isinstance(unscored, Unscored), unscored
    assert unscored.reason == reason, unscored
    assert unscored.attempts == stand_in.log.calls
    assert calls is None or stand_in.log.calls == calls


@each_backend
def test_the_wrong_key_is_final_and_never_repeated(backend: str) -> None:
    async def body() -> None:
        async with coached(backend, key="another") as (coach, stand_in):
            unscored = await coach.score(make_case())
        assert isinstance(unscored, Unscored)
        assert unscored.reason == "refused"
        assert "401" in unscored.detail
        assert KEY not in repr(unscored)
        assert stand_in.log.calls == 1

    asyncio.run(body())


def test_nobody_at_the_address_is_an_error_that_can_pass() -> None:
    async def body() -> None:
        for backend in BACKENDS:
            config = CoachModelConfig.model_validate(
                {
                    "backend": backend,
                    "model": "m",
                    "base_url": "http://127.0.0.1:9",
                    "deadline_seconds": 0.2,
                }
            )
            coach = LlmCoach(make_provider(config), RUBRICS, config, Budget(BudgetConfig()))
            unscored = await coach.score(make_case())
            await coach.close()
            assert isinstance(unscored, Unscored)
            assert (unscored.reason, unscored.attempts) == ("error", 1)

    asyncio.run(body())


TOTALLED = (
    Fault.RATE_LIMITED,
    Fault.UNAVAILABLE,
    Fault.INTERNAL,
    Fault.BAD_GATEWAY,
    Fault.SLOW,
    Fault.TRUNCATED,
    Fault.PROSE,
    Fault.WRONG_SCORE,
    Fault.BLOCKED,
    Fault.FORBIDDEN,
    Fault.CUT_CONNECTION,
    Fault.HANGING,
)


def test_thirty_percent_faults_invent_nothing_and_the_totals_match_the_servers_log() -> None:
    settings = {"concurrency": 32, "attempt_seconds": 2.0, "deadline_seconds": 60.0}

    async def body() -> tuple[Results, ProviderStub, LlmCoach]:
        script = seeded_faults(0.3, seed=4, kinds=TOTALLED)
        async with coached("gemini", script, **settings) as (coach, stand_in):  # pyright: ignore[reportArgumentType]
            return await scores(coach, 200), stand_in, coach

    results, stand_in, coach = asyncio.run(body())
    log = stand_in.log
    reasons = Counter(one.reason for one in results if isinstance(one, Unscored))
    assert set(reasons) <= {"blocked", "refused", "unparsable"}
    assert reasons["blocked"] + reasons["refused"] > 0
    assert reasons["blocked"] == log.faults["blocked"]
    assert reasons["refused"] == log.faults["forbidden"]
    for one in results:
        if isinstance(one, CoachScore):
            assert one.request is not None
            assert one.value == truth(one.request.prompt)
    assert_totals(results, log, coach)


def truth(prompt: str) -> float:
    from mappa_cli.provider_stub.script import Question

    return score_of(Question(system="", user=prompt, max_output_tokens=0, thinking_budget=0))


def assert_totals(results: Results, log: Any, coach: LlmCoach) -> None:
    assert sum(one.attempts for one in results) == log.calls
    assert sum(one.prompt_tokens or 0 for one in results) == log.prompt_tokens
    assert sum(one.reply_tokens or 0 for one in results) == log.reply_tokens
    assert sum(one.cached_tokens or 0 for one in results) == log.cached_tokens
    billed = Usage(
        prompt=log.prompt_tokens,
        cached=log.cached_tokens,
        reply=log.reply_tokens,
        thought=log.thought_tokens,
    )
    config = CoachModelConfig.model_validate({"prices": PRICES})
    exact = cost(billed, config.prices).usd
    assert coach.spent.cost_usd == exact
    assert sum(one.cost_usd or 0 for one in results) == pytest.approx(exact, abs=1e-12)
    assert coach.spent.calls == log.calls
    assert coach.spent.tokens == billed.total


def test_memory_stays_flat_over_many_scores() -> None:
    async def body() -> list[int]:
        sizes: list[int] = []
        async with coached("gemini", concurrency=16) as (coach, _):
            await scores(coach, 20)
            coach._known.clear()  # noqa: SLF001 (what is remembered on purpose is bounded apart)  # pyright: ignore[reportPrivateUsage]
            tracemalloc.start()
            for _ in range(3):
                await scores(coach, 40)
                coach._known.clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                gc.collect()
                sizes.append(tracemalloc.get_traced_memory()[0])
            tracemalloc.stop()
        return sizes

    first, _, last = asyncio.run(body())
    assert last - first < 100_000


def test_a_key_is_in_no_log_error_record_or_url(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    async def body() -> None:
        kinds = (Fault.FORBIDDEN, Fault.RATE_LIMITED, Fault.BAD_GATEWAY, Fault.CUT_CONNECTION)
        for backend in BACKENDS:
            script = seeded_faults(0.7, seed=1, kinds=kinds)
            async with coached(backend, script, deadline_seconds=1.0) as (coach, stand_in):
                results = await scores(coach, 12)
            assert KEY not in repr(results)
            assert KEY not in repr(coach.__dict__.get("_config"))
            assert stand_in.log.keys_in_urls == 0

    asyncio.run(body())
    assert KEY not in caplog.text
    written = capfd.readouterr()
    assert KEY not in written.out + written.err


def test_a_provider_that_echoes_the_key_does_not_get_it_into_a_row() -> None:
    from mappa_core.coach.providers.provider import safe

    assert safe(f"Incorrect API key provided: {KEY}.\nSee docs", KEY) == (
        "Incorrect API key provided: ***. See docs"
    )


def test_settings_do_not_print_their_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    settings = Settings()
    assert settings.secret("GOOGLE_API_KEY") == KEY
    assert KEY not in f"{settings!r} {settings} {settings.model_dump()}"


@pytest.mark.parametrize(
    ("backend", "variable"), [(name, row.needs) for name, row in PROVIDERS.items() if row.needs]
)
def test_a_missing_secret_is_refused_before_anything_is_written(
    backend: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    config = CoachModelConfig.model_validate({"backend": backend, "model": "m"})
    with pytest.raises(ConfigError, match=variable):
        check_coach(config, Settings(), coached_team(load_team("mathchat", "small-1")))


def test_vertex_speaks_to_its_own_path_with_a_bearer_token() -> None:
    async def body() -> CoachScore | Unscored:
        stand_in = ProviderStub(key="token-1")
        async with serving(stand_in) as address:
            config = CoachModelConfig.model_validate(
                {"backend": "vertex", "model": "m", "base_url": address}
            )
            provider = _vertex(config)
            coach = LlmCoach(provider, RUBRICS, config, Budget(BudgetConfig()))
            try:
                return await coach.score(make_case())
            finally:
                await coach.close()

    score = asyncio.run(body())
    assert isinstance(score, CoachScore), score


def _vertex(config: CoachModelConfig) -> GeminiProvider:
    from google import genai
    from google.oauth2.credentials import Credentials

    from mappa_core.coach.providers.gemini import http_options, open_http

    http = open_http(config)
    client = genai.Client(
        vertexai=True,
        project="p",
        location="global",
        credentials=Credentials(token="token-1"),
        http_options=http_options(config, http),
    )
    return GeminiProvider(client, http, config)


def test_a_broken_service_account_file_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    file.write_text('{"private_key": "-----BEGIN SECRET"}')
    config = CoachModelConfig.model_validate({"backend": "vertex", "model": "m"})
    with pytest.raises(ConfigError, match="GOOGLE_APPLICATION_CREDENTIALS") as refused:
        vertex_provider(config, "p", "global", file)
    assert "SECRET" not in str(refused.value)
