"""A language model as a coach: what is asked, how often, and what its replies mean."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar
from weakref import WeakValueDictionary

from mappa_core.coach.attempts import Attempts, RequestTemplate, SolvingTemplate
from mappa_core.coach.budget import Budget, Cost, Usage, cost, estimated_tokens
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.pacing import CallLimit, Clock, Rates, retrying
from mappa_core.coach.providers.provider import (
    Final,
    Passing,
    Provider,
    ProviderError,
    ProviderReply,
    ServedProvider,
)
from mappa_core.coach.replies import read_reply
from mappa_core.coach.rubrics import RubricSet
from mappa_core.coach.told import scorer_rubric, told
from mappa_core.core.concurrency import together
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    CoachRequest,
    CoachScore,
    Spending,
    Unscored,
)
from mappa_core.core.text import visible

T = TypeVar("T")

REASKS = 1
"""After a reply that cannot be read; the case is sent again as a whole."""
CASES_PER_CALL = 2
"""Cases that are looked at for each call under way: a thousand that wait hold up no first call."""
REMEMBERED = 2048
"""Scores kept for identical requests; a run's repeats lie close together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solution:
    """The coach's own, of one task."""

    text: str
    unpaid: Attempts | None
    """What it took, until the task's first score has it in its record."""


class LlmCoach:
    """Asks one provider by one rubric set, within a budget."""

    def __init__(
        self,
        provider: Provider,
        rubrics: RubricSet,
        config: CoachModelConfig,
        budget: Budget,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._provider, self._rubrics = provider, rubrics
        self._config, self._budget = config, budget
        self._clock = clock or Clock()
        self._systems = {agent: told(rubric, config) for agent, rubric in rubrics.rubrics.items()}
        self._judged_by = scorer_rubric(rubrics, config)
        self._calls = CallLimit(config.calls_at_once)
        self._at_hand = asyncio.Semaphore(CASES_PER_CALL * config.calls_at_once)
        self._rates = Rates(config.requests_per_minute, config.tokens_per_minute)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._known: OrderedDict[str, CoachScore] = OrderedDict()
        self._solutions: OrderedDict[str, _Solution] = OrderedDict()
        """By the task's statement."""

    @property
    def identity(self) -> CoachIdentity:
        """Which model is asked; each score names the model's version as it answered."""
        version, sha256 = self._judged_by
        return CoachIdentity(
            coach=self._config.backend,
            model=self._config.model,
            model_version=self._config.model,
            rubric_version=version,
            rubric_sha256=sha256,
        )

    @property
    def rubrics(self) -> RubricSet:
        """What it judges by."""
        return self._rubrics

    def under(self, rubrics: RubricSet) -> "LlmCoach":
        """The same model by other rubrics, on the same budget; closed with this one."""
        other = LlmCoach(self._provider, rubrics, self._config, self._budget, clock=self._clock)
        other._solutions = self._solutions
        return other

    @property
    def spent(self) -> Spending:
        """What the budget has paid for."""
        return self._budget.spent

    def resume_budget(self, spent: Spending) -> None:
        """Begin with what the run has spent already."""
        self._budget.resume(spent)

    def reads(self, case: CoachCase) -> object:
        """The words it is sent about a case."""
        system = self._systems.get(case.agent, "")
        return RequestTemplate(case, system, self._config).prompt

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """Ask about one action; an identical request that was answered is not asked again."""
        if case.agent not in self._systems:
            detail = f"rubric set {self._rubrics.name} has no file for agent {case.agent}"
            return Unscored(reason="refused", detail=detail, attempts=0)
        async with self._at_hand:
            return await self._scored(case)

    async def _scored(self, case: CoachCase) -> CoachScore | Unscored:
        attempts = Attempts(self._config.charged, self._clock, case)
        if self._config.own_solution and case.own_solution is None:
            try:
                case = replace(case, own_solution=await self._solution(case.statement, attempts))
            except ProviderError as error:
                return attempts.unscored(error.reason, f"its own solution: {error}")
        template = RequestTemplate(case, self._systems[case.agent], self._config)
        key = f"{case.agent}/{template.marker}/{case.sample}"
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._known.get(key)
            # What had to be asked twice begins with the same words.
            if known and known.request and known.request.prompt.startswith(template.prompt.user):
                return _again(known)
            result = await self._ask(template, attempts)
            if isinstance(result, CoachScore):
                _remember(self._known, key, result)
            return result

    async def solve(self, statements: Iterable[str]) -> None:
        """Solve tasks before any work on them is judged, where that is asked of it.

        A task's first score has the calls and tokens of its solution in its record; of a task that
        is never scored only the budget has them. One that cannot be solved now is tried again with
        its first case.
        """
        if self._config.own_solution:
            await together(self._solved(statement) for statement in dict.fromkeys(statements))

    async def _solved(self, statement: str) -> None:
        async with self._solving(statement):
            if statement not in self._solutions:
                attempts = Attempts(self._config.charged, self._clock)
                with suppress(ProviderError):
                    text = await self._worked_out(statement, attempts)
                    solution = _Solution(text=text, unpaid=attempts)
                    _remember(self._solutions, statement, solution)

    async def _solution(self, statement: str, attempts: Attempts) -> str:
        """Solve a case's task, or recall its solution; the first score of a task pays for it.

        Raises:
            ProviderError: There is none.
        """
        async with self._solving(statement):
            known = self._solutions.get(statement)
            if known is None:
                text = await self._worked_out(statement, attempts)
                known = _Solution(text=text, unpaid=None)
            if known.unpaid is not None:
                attempts.pay_for(known.unpaid)
            _remember(self._solutions, statement, replace(known, unpaid=None))
            return known.text

    def _solving(self, statement: str) -> asyncio.Lock:
        return self._locks.setdefault(f"solution of {statement}", asyncio.Lock())

    async def _worked_out(self, statement: str, attempts: Attempts) -> str:
        reply = await self._repeated(SolvingTemplate(statement, self._config), attempts, "")
        # What follows a cut is unknown, the result above all.
        if reply.cut:
            limit = self._config.max_output_tokens
            raise Final("unparsable", f"cut at {limit} tokens: raise max_output_tokens")
        if not (solution := visible(reply.text)):
            raise Final("unparsable", "the reply is empty")
        return solution

    async def start(self) -> None:
        """Bring up what is asked, where that is ours; without it the first question does."""
        if isinstance(self._provider, ServedProvider):
            await self._provider.start(self._systems.values())

    async def close(self) -> None:
        """Give connections back."""
        await self._provider.close()

    async def _repeated(
        self, template: RequestTemplate | SolvingTemplate, attempts: Attempts, why: str
    ) -> ProviderReply:
        again = retrying(self._clock, lambda: attempts.began() + self._config.deadline_seconds)
        return await again(self._attempt, template, attempts, why)

    async def _ask(self, template: RequestTemplate, attempts: Attempts) -> CoachScore | Unscored:
        why = ""
        for _ in range(1 + REASKS):
            try:
                reply = await self._repeated(template, attempts, why)
            except ProviderError as error:
                return attempts.unscored(error.reason, str(error))
            read = read_reply(reply.text, marker=template.marker, evidence=template.evidence)
            if isinstance(read, CoachScore):
                return attempts.scored(read)
            why = read.why
        return attempts.unscored("unparsable", why)

    async def _attempt(
        self, template: RequestTemplate | SolvingTemplate, attempts: Attempts, why: str
    ) -> ProviderReply:
        """Make one call within concurrency, rates and budget.

        Raises:
            ProviderError: It gave no reply.
        """
        async with self._calls.call() as era:
            # In words only now: a thousand cases that wait for their call are no thousand prompts.
            attempts.request = request = template.request(why)
            expected = Usage(
                prompt=estimated_tokens(request.system, request.prompt),
                reply=self._config.max_output_tokens,
                thought=self._config.thinking_budget or 0,
            )
            await self._rates.acquire(expected.total)
            reserved = self._cost(expected)
            if (refused := await self._budget.reserve(reserved)) is not None:
                raise Final("out_of_budget", refused)
            attempts.begin()
            used: Usage | None = Usage()
            try:
                judges = isinstance(template, RequestTemplate)
                reply = await self._call(request, template.sample, judges=judges)
                attempts.reply = reply
                used = reply.usage
            except ProviderError as error:
                used = error.usage
                if error.reason == "rate_limited":
                    self._calls.slow_down(era)
                raise
            finally:
                attempts.use(used or Usage())
                # What a server does not count may have been as much as was expected.
                self._budget.settle(reserved, reserved if used is None else self._cost(used))
            self._calls.speed_up()
            return reply

    async def _call(self, request: CoachRequest, sample: int, *, judges: bool) -> ProviderReply:
        # A provider with a server of its own knows whether that is silent or only slow.
        seconds = None if self._config.is_local else self._config.attempt_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._provider.ask(
                    request.system, request.prompt, seed=sample, judges=judges
                )
        except TimeoutError:
            raise Passing("timeout", f"no answer within {seconds:g} s") from None

    def _cost(self, usage: Usage) -> Cost:
        return cost(usage, self._config.charged)


def _remember(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    if len(known) > REMEMBERED:
        known.popitem(last=False)


def _again(known: CoachScore) -> CoachScore:
    """Copy a score that was paid for already."""
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
