"""`mappa bench coach`: the coach's policy around a real client, against the stand-in server.

throughput   scores at a model's latency (1 s) and 64 calls at once, over the ideal; the same at
             50 ms, where google-genai's 3 ms of a core for each call show, beside what this
             machine allows and google-genai's client by itself
latency      of one score at a time, above the server's
faults       30 % of the calls fail in every way: what ends unscored, and whether all totals agree
             with the server's own log
memory       what is held more after each round of new scores, once all is full that it remembers
"""

import asyncio
import gc
import itertools
import json
import math
import statistics
import sys
import time
import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from mappa_cli.benches import bench_options
from mappa_cli.benches.coach_faults import FAULT_SHARE, FAULTS, under_faults
from mappa_cli.benches.coach_peers import bare_client, google_genai, seconds_of
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.coach.budget import Budget
from mappa_core.coach.config import BudgetConfig, CoachModelConfig, PricesConfig
from mappa_core.coach.evidence import CoachPrompt, build_prompt
from mappa_core.coach.llm_coach import REMEMBERED, LlmCoach
from mappa_core.coach.protocols import Coach
from mappa_core.coach.providers.gemini import gemini_provider
from mappa_core.coach.replies import REPLY_SCHEMA
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.core.errors import CoachError
from mappa_core.core.garbage import freeze_garbage_collector
from mappa_core.core.records.episodes import Message
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.core.settings import Settings

SCORES = 1000
CONCURRENCY = 64
LATENCY_SECONDS = 0.05
REPEATS = 5
"""Rounds of which the fastest counts, for all alike: a busy neighbour only ever adds to a time."""
MODEL_SCORES = 512
MODEL_SECONDS = 1.0
"""A fast model's latency."""
MODEL_REPEATS = 3
IDEAL_AIM = 0.9
FLAT_BYTES = 2_000_000
HELD_SCORES, HELD_ROUNDS = 512, 4
"""Rounds of new cases in which nothing more may be held; a score is some 5,000 bytes."""
AGENT = "problem_solver"
TEAM, RUBRIC = "mathchat", "paper-1"
PATH = "/v1beta/models/stand-in:generateContent"
PEER_CALLS = 200
"""Of google-genai's client, which is slow; its time is scaled up."""
PRICES = PricesConfig(input_usd=0.30, cached_usd=0.075, output_usd=2.50)


def bench_coach(overrides: Sequence[str], settings: Settings) -> BenchReport:  # noqa: ARG001
    """Measure the coach against a stand-in of its provider.

    Raises:
        ConfigError: There are options.
    """
    bench_options("coach", overrides)
    return asyncio.run(_measured())


async def _measured() -> BenchReport:
    cases = [_case(number) for number in range(SCORES)]
    async with _stand_in(fault_share=0.0) as address:
        ours = min([await _seconds(address, cases) for _ in range(REPEATS)])
        latency, allowed, peer = await _clients(address, cases)
        added = await _added(address)
        async with _coach(address) as coach:
            held = await growth(coach, REMEMBERED, HELD_SCORES, HELD_ROUNDS)
    async with _stand_in(fault_share=0.0, latency_seconds=MODEL_SECONDS) as address:
        slow = min([await _seconds(address, cases[:MODEL_SCORES]) for _ in range(MODEL_REPEATS)])
    async with _stand_in(fault_share=FAULT_SHARE) as address, _coach(address) as coach:
        faults = await under_faults(address, coach, cases, PRICES, _scores)
    # A call is answered as a whole: 1,000 calls, 64 at once, are 16 rounds.
    ideal = math.ceil(SCORES / CONCURRENCY) * LATENCY_SECONDS
    slow_share = MODEL_SCORES / CONCURRENCY * MODEL_SECONDS / slow
    figures = (
        Figure(name="ideal", value=ideal, unit="s"),
        Figure(name="one call of a client that does nothing else", value=1000 * latency, unit="ms"),
        Figure(name="a client that does nothing else", value=allowed, unit="s"),
        Figure(name="google-genai's client", value=peer, unit="s"),
        Figure(name="coach", value=ours, unit="s"),
        Figure(name="what this machine allows over the ideal", value=ideal / allowed, unit="ratio"),
        aimed("over the ideal at a model's latency (1 s)", slow_share, "ratio", at_least=IDEAL_AIM),
        Figure(name="over the ideal at 50 ms", value=ideal / ours, unit="ratio"),
        Figure(name="over what this machine allows", value=allowed / ours, unit="ratio"),
        Figure(name="over google-genai's client by itself", value=peer / ours, unit="ratio"),
        Figure(name="added to the latency of one call", value=added * 1000, unit="ms"),
        Figure(
            name=f"growth of memory over {HELD_ROUNDS} rounds of {HELD_SCORES} new scores",
            value=held,
            unit="bytes",
            aim=f"< {FLAT_BYTES}",
            met=held < FLAT_BYTES,
        ),
        *faults,
    )
    return BenchReport(bench="coach", figures=figures)


@asynccontextmanager
async def _stand_in(
    *, fault_share: float, latency_seconds: float = LATENCY_SECONDS
) -> AsyncGenerator[str]:
    """The server as a process of its own, so that it does not slow the client down."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "mappa_cli.provider_stub",
        f"--latency={latency_seconds}",
        f"--fault-share={fault_share}",
        "--faults",
        *FAULTS,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = await process.stdout.readline() if process.stdout is not None else b""
        if not line:
            raise CoachError(
                "the stand-in server did not start: run python -m mappa_cli.provider_stub"
            )
        yield line.decode().strip()
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _coach(address: str) -> AsyncGenerator[LlmCoach]:
    config = CoachModelConfig(
        backend="gemini",
        model="stand-in",
        base_url=address,
        prices=PRICES,
        concurrency=CONCURRENCY,
        attempt_seconds=5,
    )
    provider = gemini_provider(config, "no-key-needed")
    coach = LlmCoach(provider, load_rubrics(TEAM, RUBRIC), config, Budget(BudgetConfig()))
    try:
        yield coach
    finally:
        await coach.close()


def _case(number: int) -> CoachCase:
    statement = f"A shop sells {number} boxes with 12 pens each. How many pens are that?"
    return CoachCase(
        statement=statement,
        agent=AGENT,
        messages=(Message(role="user", content=statement),),
        text=f"Multiply {number} by 12: a box holds 12 pens and there are {number} boxes.",
        tool_result=None,
        earlier=(),
        task_type="multiplication",
    )


async def _clients(address: str, cases: Sequence[CoachCase]) -> tuple[float, float, float]:
    """Seconds of the least client for one call and for all that the coach is going to ask.

    The third are google-genai's for all.
    """
    rubric = load_rubrics(TEAM, RUBRIC).rubrics[AGENT]
    prompts = [build_prompt(case, rubric) for case in cases]
    async with bare_client(f"{address}{PATH}", _body) as send:
        singly = [await seconds_of(send, prompts[:1], 1) for _ in range(20)]
        allowed = min([await seconds_of(send, prompts, CONCURRENCY) for _ in range(REPEATS)])
    async with google_genai(address) as send:
        peer = await seconds_of(send, prompts[:PEER_CALLS], CONCURRENCY)
    return statistics.median(singly), allowed, peer * SCORES / PEER_CALLS


def _body(prompt: CoachPrompt) -> bytes:
    return json.dumps(
        {
            "contents": [{"role": "user", "parts": [{"text": prompt.user}]}],
            "systemInstruction": {"parts": [{"text": prompt.system}]},
            "generationConfig": {"responseJsonSchema": dict(REPLY_SCHEMA)},
        }
    ).encode()


async def _seconds(address: str, cases: Sequence[CoachCase]) -> float:
    """How long the coach takes for `cases`, on warm connections."""
    async with _coach(address) as coach:
        await _scores(coach, [_case(-number) for number in range(1, CONCURRENCY)])
        freeze_garbage_collector()
        started = time.perf_counter()
        await _scores(coach, cases)
        return time.perf_counter() - started


async def _added(address: str) -> float:
    """Seconds that one score takes longer than the server's latency, one at a time."""
    took: list[float] = []
    async with _coach(address) as coach:
        for number in range(20):
            started = time.perf_counter()
            await coach.score(_case(number))
            took.append(time.perf_counter() - started)
    return statistics.median(took) - LATENCY_SECONDS


async def _scores(coach: Coach, cases: Sequence[CoachCase]) -> list[CoachScore | Unscored]:
    return await asyncio.gather(*(coach.score(case) for case in cases))


async def growth(coach: Coach, remembered: int, scores: int, rounds: int) -> int:
    """Bytes that a coach holds more after each of some rounds of new scores than before, at most.

    It is first asked about as many cases as it remembers, so that what it keeps on purpose is full,
    and never about one case twice, so that no answer comes from there.

    Args:
        coach: Who is asked.
        remembered: Scores that it keeps on purpose.
        scores: Of each round.
        rounds: Measured ones.

    Raises:
        CoachError: An answer was none of a call.
    """
    numbers, held = itertools.count(1), list[int]()
    tracemalloc.start()
    try:
        for count in (remembered, *(rounds + 1) * (scores,)):
            given = await _scores(coach, [_case(next(numbers)) for _ in range(count)])
            if any(score.attempts == 0 for score in given):
                raise CoachError("a score of the memory's rounds was remembered, not asked for")
            del given
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # The first round after filling up is not compared: buffers and connections grow to their size.
    return max(0, *(one - held[1] for one in held[2:]))
