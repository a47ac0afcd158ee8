"""One score on its way: what is sent for it, and what its attempts took."""

from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from mappa_core.coach.budget import Cost, Usage, cost
from mappa_core.coach.config import CoachModelConfig, PricesConfig
from mappa_core.coach.evidence import (
    SOLVING,
    CoachPrompt,
    authored,
    case_text,
    case_texts,
    marker_of,
    shown,
)
from mappa_core.coach.injection import flags_in
from mappa_core.coach.pacing import Clock
from mappa_core.coach.providers.provider import ProviderReply
from mappa_core.core.records.scores import (
    CoachCall,
    CoachCase,
    CoachRequest,
    CoachScore,
    Unscored,
    UnscoredReason,
)

RECORDED = ("model", "temperature", "thinking_budget", "reasoning_effort", "max_output_tokens")
"""Keys of the configuration that every score keeps with its prompt."""

REASK = """

Your last reply to this case could not be read: {why}. Judge the case above again and answer in the
form you were told."""


class RequestTemplate:
    """Makes the requests about one case; the case is put into words when the first is made."""

    def __init__(self, case: CoachCase, system: str, config: CoachModelConfig) -> None:
        self.case, self.marker, self.sample = case, marker_of(case), case.sample
        self._system, self._config = system, config

    @cached_property
    def prompt(self) -> CoachPrompt:
        """The case in words."""
        brief = self._config.server.rationale_characters is not None
        user = case_text(self.case, None if brief else self.marker)
        return CoachPrompt(system=self._system, user=user, marker=self.marker)

    @property
    def evidence(self) -> tuple[str, ...]:
        """All that the coach may quote and has not said itself."""
        return (*case_texts(self.case), self.prompt.user)

    def request(self, why: str) -> CoachRequest:
        """Make what is sent; `why` the last reply could not be read, if there was one."""
        user = self.prompt.user + (REASK.format(why=why) if why else "")
        settings = recorded(self._config)
        return CoachRequest(system=self.prompt.system, prompt=user, settings=settings)


class SolvingTemplate:
    """Makes the request for the coach's own solution of a task."""

    sample = 0
    """All cases of a task have the same one, whichever comes first."""

    def __init__(self, statement: str, config: CoachModelConfig) -> None:
        self._statement, self._config = statement, config

    def request(self, why: str) -> CoachRequest:  # noqa: ARG002
        """Make what is sent; no solution is refused, so that there is no `why`."""
        return CoachRequest(
            system=SOLVING,
            prompt=shown(self._statement),
            settings=recorded(self._config),
        )


def recorded(config: CoachModelConfig) -> dict[str, Any]:
    """The settings that every score keeps with its prompt."""
    return {name: getattr(config, name) for name in RECORDED}


class Attempts:
    """Counts the calls, tokens and seconds of one score, and makes its record."""

    def __init__(self, prices: PricesConfig, clock: Clock, case: CoachCase | None = None) -> None:
        self._prices, self._clock = prices, clock
        self._flags = () if case is None else flags_in(authored(case))
        self._calls = 0
        self._began: float | None = None
        self._usage, self._cost = Usage(), Cost()
        self.request: CoachRequest | None = None
        self.reply: ProviderReply | None = None
        """The last one."""

    def begin(self) -> None:
        """Count a call that is made now."""
        self._calls += 1
        self.began()

    def began(self) -> float:
        """The moment of the first call, now if there was none; what waits is not late yet."""
        if self._began is None:
            self._began = self._clock.now()
        return self._began

    def use(self, usage: Usage) -> None:
        """Count the tokens of a call."""
        self._usage += usage
        self._cost += cost(usage, self._prices)

    @property
    def taken(self) -> tuple[int, Usage]:
        """Calls and tokens until now."""
        return self._calls, self._usage

    def pay_for(self, earlier: "Attempts") -> None:
        """Count the calls and tokens of what was asked beforehand for this score."""
        calls, usage = earlier.taken
        self._calls += calls
        self.use(usage)

    def scored(self, judged: CoachScore) -> CoachScore:
        """Make the record of a score that was read in the last reply."""
        return replace(judged, **self._fields())

    def unscored(self, reason: UnscoredReason, detail: str) -> Unscored:
        """Make the record of why there is none."""
        return Unscored(**self._fields(), reason=reason, detail=detail)

    def _fields(self) -> dict[str, Any]:
        """The fields that both records have, by name."""
        call = CoachCall(
            seconds=0.0 if self._began is None else self._clock.now() - self._began,
            raw_reply=self.reply and self.reply.text,
            model_version=self.reply and self.reply.model_version,
            prompt_tokens=self._usage.prompt,
            reply_tokens=self._usage.reply,
            cached_tokens=self._usage.cached,
            thought_tokens=self._usage.thought,
            cost_usd=self._cost.usd,
            request=self.request,
            attempts=self._calls,
            flags=self._flags,
        )
        return {field.name: getattr(call, field.name) for field in fields(CoachCall)}
