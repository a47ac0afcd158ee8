"""`mappa bench coach`: the coach's policy around a real client, against the stand-in server.

throughput   1,000 scores at 50 ms latency and 64 calls at once: over the ideal, and over the bare
             client sending the same requests in the same run
faults       30 % of the calls fail in every way: who ends unscored, and whether all totals agree
             with the server's own log
memory       what is held after each round of scores
"""

import asyncio
import gc
import sys
import time
import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from flows.bench import BenchReport, Figure, machine
from flows.rehearsal.script import Fault, Question, score_of
from mappa_core.adapters.llm_coach.budget import Budget
from mappa_core.adapters.llm_coach.coach import LlmCoach
from mappa_core.adapters.llm_coach.gemini import GeminiProvider, gemini_provider
from mappa_core.coaching.evidence import EvidenceLimits, build_prompt
from mappa_core.coaching.prices import Usage, cost, dollars
from mappa_core.coaching.rubrics import load_rubrics
from mappa_core.config import BudgetConfig, CoachModelConfig
from mappa_core.domain.errors import CoachError
from mappa_core.domain.records import Asked, CoachCase, CoachScore, Message, Unscored

SCORES = 1000
CONCURRENCY = 64
LATENCY_SECONDS = 0.05
MODEL_SCORES = 512
MODEL_SECONDS = 1.0
"""A fast model's latency; 50 ms is what the client itself can hardly keep up with."""
FAULT_SHARE = 0.3
IDEAL_AIM = 0.9
FLAT_BYTES = 2_000_000
AGENT = "problem_solver"
# A cut connection or a hanging call is made again; a blocked or forbidden one is final.
FAULTS = tuple(fault for fault in Fault if fault not in (Fault.NONE, Fault.NOT_FOUND))
RIGHT_REASONS = {"blocked": "blocked", "refused": "forbidden"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The stand-in's own count."""

    calls: int
    usage: Usage
    faults: dict[str, int]


async def bench_coach() -> BenchReport:
    """Measure the coach."""
    cases = [_case(number) for number in range(SCORES)]
    async with _stand_in(fault_share=0.0) as address:
        bare, ours = await _throughput(address, cases)
        held = await _memory(address)
    async with _stand_in(fault_share=0.0, latency_seconds=MODEL_SECONDS) as address:
        slow = await _seconds(address, cases[:MODEL_SCORES])
    async with _stand_in(fault_share=FAULT_SHARE) as address:
        faults = await _under_faults(address, cases)
    ideal = SCORES / CONCURRENCY * LATENCY_SECONDS
    share = ideal / ours
    slow_share = MODEL_SCORES / CONCURRENCY * MODEL_SECONDS / slow
    figures = (
        Figure(name="ideal", value=ideal, unit="s"),
        Figure(name="bare client, same requests", value=bare, unit="s"),
        Figure(name="coach", value=ours, unit="s"),
        _aimed("coach's throughput over the ideal", share, "ratio", IDEAL_AIM),
        _aimed("coach's throughput over the bare client", bare / ours, "ratio", IDEAL_AIM),
        _aimed("over the ideal at a model's latency (1 s)", slow_share, "ratio", IDEAL_AIM),
        Figure(
            name="growth of memory over 4 rounds of 100 scores",
            value=held,
            unit="bytes",
            aim=f"< {FLAT_BYTES}",
            met=held < FLAT_BYTES,
        ),
        *faults,
    )
    return BenchReport(bench="coach", machine=machine(), figures=figures)


def _aimed(name: str, value: float, unit: str, aim: float) -> Figure:
    return Figure(name=name, value=value, unit=unit, aim=f">= {aim}", met=value >= aim)


@asynccontextmanager
async def _stand_in(
    *, fault_share: float, latency_seconds: float = LATENCY_SECONDS
) -> AsyncGenerator[str]:
    """The server as a process of its own, so that it does not slow the client down."""
    faults = [fault.value for fault in FAULTS]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "flows.rehearsal",
        f"--latency={latency_seconds}",
        f"--fault-share={fault_share}",
        "--faults",
        *faults,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        line = await process.stdout.readline() if process.stdout is not None else b""
        if not line:
            raise CoachError("the stand-in server did not start: run python -m flows.rehearsal")
        yield line.decode().strip()
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _coach(address: str) -> AsyncGenerator[tuple[LlmCoach, GeminiProvider]]:
    prices = {"input_usd": 0.30, "cached_usd": 0.075, "output_usd": 2.50}
    config = CoachModelConfig.model_validate(
        {
            "backend": "gemini",
            "model": "stand-in",
            "base_url": address,
            "prices": prices,
            "concurrency": CONCURRENCY,
            "attempt_seconds": 5,
        }
    )
    provider = gemini_provider(config, "no-key-needed")
    rubrics = load_rubrics("mathchat", "paper-1")
    coach = LlmCoach(provider, rubrics, config, Budget(BudgetConfig()))
    try:
        yield coach, provider
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


async def _throughput(address: str, cases: Sequence[CoachCase]) -> tuple[float, float]:
    """Seconds of the bare client and of the coach, each on warm connections of its own."""
    rubric = load_rubrics("mathchat", "paper-1").rubrics[AGENT]
    prompts = [build_prompt(case, rubric, EvidenceLimits()) for case in cases]
    slots = asyncio.Semaphore(CONCURRENCY)
    async with _coach(address) as (_, provider):

        async def one(system: str, user: str) -> None:
            async with slots:
                await provider.ask(system, user, seed=0)

        await asyncio.gather(*(one("warm", "up") for _ in range(CONCURRENCY)))
        started = time.perf_counter()
        await asyncio.gather(*(one(prompt.system, prompt.user) for prompt in prompts))
        bare = time.perf_counter() - started
    return bare, await _seconds(address, cases)


async def _seconds(address: str, cases: Sequence[CoachCase]) -> float:
    """How long the coach takes for `cases`, on warm connections."""
    async with _coach(address) as (coach, _):
        await _scores(coach, [_case(-number) for number in range(1, CONCURRENCY)])
        started = time.perf_counter()
        await _scores(coach, cases)
        return time.perf_counter() - started


async def _scores(coach: LlmCoach, cases: Sequence[CoachCase]) -> list[CoachScore | Unscored]:
    return await asyncio.gather(*(coach.score(case) for case in cases))


async def _memory(address: str) -> int:
    """Bytes held more after the last round than after the first."""
    held: list[int] = []
    async with _coach(address) as (coach, _):
        tracemalloc.start()
        for _ in range(5):
            # The same cases, so that what is remembered on purpose stays the same.
            await _scores(coach, [_case(number) for number in range(100)])
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return max(0, held[-1] - held[0])


async def _under_faults(address: str, cases: Sequence[CoachCase]) -> tuple[Figure, ...]:
    async with _coach(address) as (coach, _):
        results = await _scores(coach, cases)
        spent = coach.spent
    totals = await _totals(address)
    config = CoachModelConfig.model_validate(
        {"prices": {"input_usd": 0.30, "cached_usd": 0.075, "output_usd": 2.50}}
    )
    differences = (
        ("calls", sum(one.attempts for one in results), totals.calls),
        ("tokens", sum(_tokens(one) for one in results), totals.usage.total),
        ("dollars", spent.cost_usd, dollars(cost(totals.usage, config.prices))),
    )
    unscored = [one for one in results if isinstance(one, Unscored)]
    wrong = sum(_reason_is_wrong(one) for one in unscored)
    wrong += sum(
        abs(sum(one.reason == reason for one in unscored) - totals.faults.get(fault, 0))
        for reason, fault in RIGHT_REASONS.items()
    )
    invented = sum(isinstance(one, CoachScore) and one.value != _truth(one) for one in results)
    return (
        Figure(name="calls under 30 % faults", value=totals.calls, unit="calls"),
        Figure(name="of 1,000 actions unscored", value=len(unscored), unit="actions"),
        _zero("unscored with a wrong reason", wrong, "actions"),
        _zero("scores that nobody gave", invented, "scores"),
        *(
            _zero(f"{name}, ours less the server's", ours - theirs, name)
            for name, ours, theirs in differences
        ),
    )


def _zero(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, aim="0", met=value == 0)


def _tokens(asked: Asked) -> int:
    return sum(n or 0 for n in (asked.prompt_tokens, asked.reply_tokens, asked.thought_tokens))


def _reason_is_wrong(unscored: Unscored) -> bool:
    return unscored.reason not in {*RIGHT_REASONS, "unparsable"}


def _truth(score: CoachScore) -> float:
    request = score.request
    prompt = "" if request is None else request.prompt
    return score_of(Question(system="", user=prompt, max_output_tokens=0, thinking_budget=0))


async def _totals(address: str) -> Totals:
    async with httpx.AsyncClient(trust_env=False) as client:
        log = (await client.get(f"{address}/log")).json()
    usage = Usage(
        prompt=log["prompt_tokens"],
        cached=log["cached_tokens"],
        reply=log["reply_tokens"],
        thought=log["thought_tokens"],
    )
    return Totals(calls=log["calls"], usage=usage, faults=log["faults"])
