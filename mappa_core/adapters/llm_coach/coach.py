"""A language model behind the coach port: what is asked, how often, and what its replies mean."""

import asyncio
import time as clock
from collections import OrderedDict
from dataclasses import replace
from random import Random
from weakref import WeakValueDictionary

from mappa_core.adapters.llm_coach.budget import Bill, Budget
from mappa_core.adapters.llm_coach.ledger import Ledger
from mappa_core.adapters.llm_coach.limits import Rates, Slots
from mappa_core.adapters.llm_coach.patience import Time, retrying
from mappa_core.adapters.llm_coach.provider import (
    Final,
    Passing,
    Provider,
    ProviderError,
    ProviderReply,
)
from mappa_core.coaching.evidence import (
    CoachPrompt,
    EvidenceLimits,
    authored,
    build_prompt,
    case_texts,
)
from mappa_core.coaching.injection import flags_in
from mappa_core.coaching.prices import Usage, cost, estimated_tokens
from mappa_core.coaching.replies import Judged, read_reply
from mappa_core.coaching.rubrics import RubricSet
from mappa_core.config import CoachModelConfig
from mappa_core.domain.records import (
    CoachCase,
    CoachIdentity,
    CoachRequest,
    CoachScore,
    Spending,
    Unscored,
)

REASKS = 1
"""After a reply that cannot be read; the case is sent again as a whole."""
REMEMBERED = 2048
"""Scores kept for identical requests; a run's repeats lie close together."""

REASK = """

Your last reply to this case could not be read: {why}. Judge the case above again and answer in the
form you were told."""


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
        self._slots = Slots(config.concurrency)
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
        rubric = self._rubrics.rubrics.get(case.agent)
        if rubric is None:
            detail = f"rubric set {self._rubrics.name} has no file for agent {case.agent}"
            return Unscored(reason="refused", detail=detail, attempts=0)
        prompt = build_prompt(case, rubric, self._evidence, correction=self._config.correction)
        key = f"{case.agent}/{prompt.marker}/{case.sample}"
        lock = self._asking.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._known.get(key)
            if known and known.request and known.request.prompt == prompt.user:
                return _again(known)
            result = await self._asked(case, prompt)
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

    async def _asked(self, case: CoachCase, prompt: CoachPrompt) -> CoachScore | Unscored:
        ledger = Ledger(
            self._config.prices, self._request(prompt.system, prompt.user), flags_in(authored(case))
        )
        evidence = (*case_texts(case), prompt.user)
        asking = _Asking(self._time)
        why = ""
        for ask in range(1 + REASKS):
            user = prompt.user + (REASK.format(why=why) if ask else "")
            ledger.request = self._request(prompt.system, user)
            try:
                reply = await self._with_patience(asking, ledger, case.sample)
            except ProviderError as error:
                return ledger.unscored(error.reason, str(error), asking.seconds())
            read = read_reply(reply.text, marker=prompt.marker, evidence=evidence)
            if isinstance(read, Judged):
                return ledger.scored(read, asking.seconds())
            why = read.why
        return ledger.unscored("unparsable", why, asking.seconds())

    def _request(self, system: str, user: str) -> CoachRequest:
        settings = {
            "model": self._config.model,
            "temperature": self._config.temperature,
            "thinking_budget": self._config.thinking_budget,
            "max_output_tokens": self._config.max_output_tokens,
        }
        return CoachRequest(system=system, prompt=user, settings=settings)

    async def _with_patience(self, asking: "_Asking", ledger: Ledger, sample: int) -> ProviderReply:
        def deadline() -> float:
            return asking.begun() + self._config.deadline_seconds

        tries = retrying(deadline, self._time, self._jitter)
        return await tries(self._attempt, asking, ledger, sample)

    async def _attempt(self, asking: "_Asking", ledger: Ledger, sample: int) -> ProviderReply:
        """One call within slots, rates and budget.

        Raises:
            ProviderError: It gave no reply.
        """
        expected = self._expected(ledger.request)
        async with self._slots.slot() as era:
            await self._rates.acquire(expected.total)
            reserved = self._bill(expected)
            if (why := self._budget.reserve(reserved)) is not None:
                raise Final("out_of_budget", why)
            asking.begun()
            ledger.attempt()
            used = Usage()
            try:
                reply = await self._called(ledger.request, sample)
                used = reply.usage
                ledger.replied(reply)
            except ProviderError as error:
                used = error.usage
                if error.reason == "rate_limited":
                    self._slots.slow_down(era)
                raise
            finally:
                ledger.use(used)
                self._budget.settle(reserved, self._bill(used))
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


class _Asking:
    """When the first call about one action began; waiting for a slot is not its fault."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._began: float | None = None

    def begun(self) -> float:
        """The moment of the first call, now if this is it."""
        if self._began is None:
            self._began = self._time.now()
        return self._began

    def seconds(self) -> float:
        """Since the first call began."""
        return 0.0 if self._began is None else self._time.now() - self._began


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
