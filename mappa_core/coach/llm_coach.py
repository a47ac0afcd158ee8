"""A language model behind the coach port: what is asked, how often, and what its replies mean."""

import asyncio
import time as clock
from collections import OrderedDict
from dataclasses import replace
from random import Random
from weakref import WeakValueDictionary

from mappa_core.coach.budget import Bill, Budget
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.evidence import EvidenceLimits, authored, case_texts, system_text
from mappa_core.coach.injection import flags_in
from mappa_core.coach.ledger import Ledger
from mappa_core.coach.limits import Rates, Slots
from mappa_core.coach.prices import Usage, cost, estimated_tokens
from mappa_core.coach.providers.provider import (
    Final,
    Passing,
    Provider,
    ProviderError,
    ProviderReply,
)
from mappa_core.coach.replies import Judged, read_reply
from mappa_core.coach.requests import Asking
from mappa_core.coach.retries import Time, repeated
from mappa_core.coach.rubrics import RubricSet
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    CoachRequest,
    CoachScore,
    Spending,
    Unscored,
)

REASKS = 1
"""After a reply that cannot be read; the case is sent again as a whole."""
CASES_PER_SLOT = 2
"""Cases that are looked at for each call under way: a thousand that wait hold up no first call."""
REMEMBERED = 2048
"""Scores kept for identical requests; a run's repeats lie close together."""


def wall_clock() -> Time:
    """The real clock."""
    return Time(now=clock.monotonic, sleep=asyncio.sleep)


class LlmCoach:
    """Asks one provider by one rubric set; `Budgeted` beside `ports.Coach`."""

    def __init__(
        self,
        provider: Provider,
        rubrics: RubricSet,
        config: CoachModelConfig,
        budget: Budget,
        *,
        time: Time | None = None,
        evidence: EvidenceLimits | None = None,
    ) -> None:
        self._provider, self._rubrics, self._config, self._budget = (
            provider,
            rubrics,
            config,
            budget,
        )
        self._time = time or wall_clock()
        self._evidence = evidence or EvidenceLimits()
        self._systems = {
            agent: system_text(rubric, correction=config.correction)
            for agent, rubric in rubrics.rubrics.items()
        }
        self._slots = Slots(config.concurrency)
        self._at_hand = asyncio.Semaphore(CASES_PER_SLOT * config.concurrency)
        self._rates = Rates(config.requests_per_minute, config.tokens_per_minute)
        self._jitter = Random()  # noqa: S311 (spreads retries; decides nothing)
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: OrderedDict[str, CoachScore] = OrderedDict()

    @property
    def identity(self) -> CoachIdentity:
        """Who is asked; each score names the model's version as it answered."""
        return CoachIdentity(
            coach=self._config.backend,
            model=self._config.model,
            model_version=self._config.model,
            rubric_version=self._rubrics.name,
            rubric_sha256=self._rubrics.sha256,
        )

    @property
    def spent(self) -> Spending:
        """What the budget has paid for."""
        return self._budget.spent

    def resume_budget(self, spent: Spending) -> None:
        """Begin with what the run has spent already."""
        self._budget.resume(spent)

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """Ask about one action; an identical request that was answered is not asked again."""
        if case.agent not in self._systems:
            detail = f"rubric set {self._rubrics.name} has no file for agent {case.agent}"
            return Unscored(reason="refused", detail=detail, attempts=0)
        async with self._at_hand:
            return await self._scored(case)

    async def _scored(self, case: CoachCase) -> CoachScore | Unscored:
        asking = Asking(case, self._systems[case.agent], self._evidence, self._config, self._time)
        key = f"{case.agent}/{asking.marker}/{case.sample}"
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._known.get(key)
            # What had to be asked twice begins with the same words.
            if known and known.request and known.request.prompt.startswith(asking.prompt.user):
                return _again(known)
            result = await self._asked(asking)
            if isinstance(result, CoachScore):
                self._remember(key, result)
            return result

    async def close(self) -> None:
        """Give connections back."""
        await self._provider.close()

    def _remember(self, key: str, score: CoachScore) -> None:
        self._known[key] = score
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    async def _asked(self, asking: Asking) -> CoachScore | Unscored:
        ledger = Ledger(self._config.prices, flags_in(authored(asking.case)))
        why = ""
        for _ in range(1 + REASKS):
            try:
                reply = await self._with_patience(asking, ledger, why)
            except ProviderError as error:
                return ledger.unscored(error.reason, str(error), asking.seconds())
            prompt = asking.prompt
            evidence = (*case_texts(asking.case), prompt.user)
            read = read_reply(reply.text, marker=prompt.marker, evidence=evidence)
            if isinstance(read, Judged):
                return ledger.scored(read, asking.seconds())
            why = read.why
        return ledger.unscored("unparsable", why, asking.seconds())

    async def _with_patience(self, asking: Asking, ledger: Ledger, why: str) -> ProviderReply:
        return await repeated(
            lambda: self._attempt(asking, ledger, why),
            deadline=lambda: asking.begun() + self._config.deadline_seconds,
            time=self._time,
            jitter=self._jitter,
        )

    async def _attempt(self, asking: Asking, ledger: Ledger, why: str) -> ProviderReply:
        """One call within slots, rates and budget.

        Raises:
            ProviderError: It gave no reply.
        """
        async with self._slots.slot() as era:
            # In words only now: a thousand cases that wait for a slot are no thousand prompts.
            ledger.request = request = asking.request(why)
            expected = self._expected(request)
            await self._rates.acquire(expected.total)
            reserved = self._bill(expected)
            if (refused := await self._budget.reserve(reserved)) is not None:
                raise Final("out_of_budget", refused)
            asking.begun()
            ledger.attempt()
            used: Usage | None = Usage()
            try:
                reply = await self._called(request, asking.case.sample)
                used = reply.usage
                ledger.replied(reply)
            except ProviderError as error:
                used = error.usage
                if error.reason == "rate_limited":
                    self._slots.slow_down(era)
                raise
            finally:
                ledger.use(used or Usage())
                # What a server does not count may have been as much as was expected.
                self._budget.settle(reserved, reserved if used is None else self._bill(used))
            self._slots.speed_up()
            return reply

    async def _called(self, request: CoachRequest, sample: int) -> ProviderReply:
        seconds = self._config.attempt_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._provider.ask(request.system, request.prompt, seed=sample)
        except TimeoutError:
            raise Passing("timeout", f"no answer within {seconds:g} s") from None

    def _expected(self, request: CoachRequest) -> Usage:
        return Usage(
            prompt=estimated_tokens(request.system, request.prompt),
            reply=self._config.max_output_tokens,
            thought=self._config.thinking_budget or 0,
        )

    def _bill(self, usage: Usage) -> Bill:
        return Bill(tokens=usage.total, picodollars=cost(usage, self._config.prices))


def _again(known: CoachScore) -> CoachScore:
    """A score that was paid for already."""
    return replace(
        known,
        seconds=0.0,
        attempts=0,
        prompt_tokens=0,
        reply_tokens=0,
        cached_tokens=0,
        thought_tokens=0,
        cost_usd=0.0,
    )
