"""The coach while calls fail in every way: what ends unscored, and whether all totals agree."""

from collections.abc import Awaitable, Callable, Sequence

import httpx

from mappa_cli.benches.report import Figure
from mappa_cli.provider_stub.script import Fault, Question, score_of
from mappa_cli.provider_stub.server import Log
from mappa_core.coach.budget import Usage, cost
from mappa_core.coach.config import PricesConfig
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.core.records.scores import CoachCall, CoachCase, CoachScore, Unscored

FAULT_SHARE = 0.3
# A cut connection or a hanging call is made again; a blocked or forbidden one is final.
FAULTS = tuple(fault for fault in Fault if fault not in (Fault.NONE, Fault.NOT_FOUND))
RIGHT_REASONS = {"blocked": "blocked", "refused": "forbidden"}
Results = list[CoachScore | Unscored]


async def under_faults(
    address: str,
    coach: LlmCoach,
    cases: Sequence[CoachCase],
    prices: PricesConfig,
    score_all: Callable[[LlmCoach, Sequence[CoachCase]], Awaitable[Results]],
) -> tuple[Figure, ...]:
    """Score `cases` by a coach whose server fails, and compare with the server's log."""
    results = await score_all(coach, cases)
    async with httpx.AsyncClient(trust_env=False) as client:
        log = Log(**(await client.get(f"{address}/log")).json())
    usage = Usage(
        prompt=log.prompt_tokens,
        cached=log.cached_tokens,
        reply=log.reply_tokens,
        thought=log.thought_tokens,
    )
    differences = (
        ("calls", sum(one.attempts for one in results), log.calls),
        ("tokens", sum(_tokens(one) for one in results), usage.total),
        ("dollars", coach.spent.cost_usd, cost(usage, prices).usd),
    )
    unscored = [one for one in results if isinstance(one, Unscored)]
    wrong = sum(one.reason not in {*RIGHT_REASONS, "unparsable"} for one in unscored)
    wrong += sum(
        abs(sum(one.reason == reason for one in unscored) - log.faults.get(fault, 0))
        for reason, fault in RIGHT_REASONS.items()
    )
    invented = sum(isinstance(one, CoachScore) and one.value != _truth(one) for one in results)
    return (
        Figure(name="calls under 30 % faults", value=log.calls, unit="calls"),
        Figure(name="of 1,000 actions unscored", value=len(unscored), unit="actions"),
        _zero("unscored with a wrong reason", wrong, "actions"),
        _zero("invented scores", invented, "scores"),
        *(
            _zero(f"{name}, ours less the server's", ours - theirs, name)
            for name, ours, theirs in differences
        ),
    )


def _zero(name: str, value: float, unit: str) -> Figure:
    return Figure(name=name, value=value, unit=unit, aim="0", met=value == 0)


def _tokens(call: CoachCall) -> int:
    return sum(n or 0 for n in (call.prompt_tokens, call.reply_tokens, call.thought_tokens))


def _truth(score: CoachScore) -> float:
    request = score.request
    prompt = "" if request is None else request.prompt
    return score_of(Question(system="", user=prompt, max_output_tokens=0, thinking_budget=0))
