"""What asking about one action took, over all its attempts."""

from mappa_core.coach.config import PricesConfig
from mappa_core.coach.prices import Usage, cost, dollars
from mappa_core.coach.providers.provider import ProviderReply
from mappa_core.coach.replies import Judged
from mappa_core.core.records.scores import CoachRequest, CoachScore, Unscored, UnscoredReason


class Ledger:
    """Attempts, tokens and the last reply of one score; it becomes the score's record."""

    def __init__(self, prices: PricesConfig, flags: tuple[str, ...]) -> None:
        self._prices, self._flags = prices, flags
        self.request: CoachRequest | None = None
        self._attempts = 0
        self._usage = Usage()
        self._picodollars = 0
        self._reply: ProviderReply | None = None

    def attempt(self) -> None:
        """A call is made."""
        self._attempts += 1

    def use(self, usage: Usage) -> None:
        """A call took tokens."""
        self._usage += usage
        self._picodollars += cost(usage, self._prices)

    def replied(self, reply: ProviderReply) -> None:
        """A call was answered."""
        self._reply = reply

    def scored(self, judged: Judged, seconds: float) -> CoachScore:
        """The record of a score."""
        return CoachScore(
            value=judged.value,
            rationale=judged.rationale,
            criteria=judged.criteria,
            blamed=judged.blamed,
            correction=judged.correction,
            seconds=seconds,
            raw_reply=self._reply and self._reply.text,
            model_version=self._reply and self._reply.model_version,
            prompt_tokens=self._usage.prompt,
            reply_tokens=self._usage.reply,
            cached_tokens=self._usage.cached,
            thought_tokens=self._usage.thought,
            cost_usd=dollars(self._picodollars),
            request=self.request,
            attempts=self._attempts,
            flags=self._flags,
        )

    def unscored(self, reason: UnscoredReason, detail: str, seconds: float) -> Unscored:
        """The record of why there is none."""
        return Unscored(
            reason=reason,
            detail=detail,
            seconds=seconds,
            raw_reply=self._reply and self._reply.text,
            model_version=self._reply and self._reply.model_version,
            prompt_tokens=self._usage.prompt,
            reply_tokens=self._usage.reply,
            cached_tokens=self._usage.cached,
            thought_tokens=self._usage.thought,
            cost_usd=dollars(self._picodollars),
            request=self.request,
            attempts=self._attempts,
            flags=self._flags,
        )
