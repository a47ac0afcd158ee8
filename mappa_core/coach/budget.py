"""What coaching takes and may take: tokens, their price, and the budget of a run.

    spent + under way + this call    within the limits: it is made
    spent             + this call    within the limits: it waits until a call under way is settled
                                     beyond them: it is refused

A call is reserved before it is made, at its most expensive, and settled by its count. Money is
counted in whole picodollars, so that sums are exact: a price of 0.30 dollars per million tokens is
300,000 picodollars per token.
"""

import asyncio
from dataclasses import dataclass

from mappa_core.coach.config import BudgetConfig, PricesConfig
from mappa_core.core.records.scores import Spending

PICODOLLARS = 10**12
CHARACTERS_PER_TOKEN = 4.0
"""Of English and code, about; what a call will take is estimated by it, what it took is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Counts the tokens of one call or many, as the provider does."""

    prompt: int = 0
    """Cached ones included."""
    cached: int = 0
    reply: int = 0
    thought: int = 0

    @property
    def total(self) -> int:
        """All tokens."""
        return self.prompt + self.reply + self.thought

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            reply=self.reply + other.reply,
            thought=self.thought + other.thought,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Counts the tokens of calls and their price."""

    tokens: int = 0
    picodollars: int = 0

    @property
    def usd(self) -> float:
        """The price in dollars."""
        return self.picodollars / PICODOLLARS

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            tokens=self.tokens + other.tokens, picodollars=self.picodollars + other.picodollars
        )

    def __sub__(self, other: "Cost") -> "Cost":
        return self + Cost(tokens=-other.tokens, picodollars=-other.picodollars)


def cost(usage: Usage, prices: PricesConfig) -> Cost:
    """Price `usage`; cached tokens cost as others where they have no price of their own."""
    cached_usd = prices.input_usd if prices.cached_usd is None else prices.cached_usd
    picodollars = (
        (usage.prompt - usage.cached) * _per_token(prices.input_usd)
        + usage.cached * _per_token(cached_usd)
        + (usage.reply + usage.thought) * _per_token(prices.output_usd)
    )
    return Cost(tokens=usage.total, picodollars=picodollars)


def _per_token(usd_per_million: float) -> int:
    return round(usd_per_million * PICODOLLARS / 10**6)


def estimated_tokens(*texts: str) -> int:
    """Estimate how many tokens `texts` are."""
    return round(sum(len(text) for text in texts) / CHARACTERS_PER_TOKEN)


class Budget:
    """Counts what the coaches of one run spend, and refuses a call before it is too much."""

    def __init__(self, config: BudgetConfig) -> None:
        self._config = config
        self._calls = 0
        self._spent = self._under_way = Cost()
        self._settled = asyncio.Event()

    def resume(self, spent: Spending) -> None:
        """Begin with what the run has spent already."""
        self._calls = spent.calls
        self._spent = Cost(tokens=spent.tokens, picodollars=round(spent.cost_usd * PICODOLLARS))

    async def reserve(self, call: Cost) -> str | None:
        """Take `call` into account as soon as it fits, or say why it never will."""
        while (refusal := self._refusal(self._spent + call)) is None:
            if self._refusal(self._spent + self._under_way + call) is None:
                self._calls += 1
                self._under_way += call
                break
            await self._settled.wait()
        return refusal

    def settle(self, reserved: Cost, counted: Cost) -> None:
        """Replace what was expected by what was counted."""
        self._under_way -= reserved
        self._spent += counted
        # All that wait look again; the next settlement is another event.
        self._settled.set()
        self._settled = asyncio.Event()

    @property
    def spent(self) -> Spending:
        """What was counted; of calls under way, that they were made."""
        return Spending(calls=self._calls, tokens=self._spent.tokens, cost_usd=self._spent.usd)

    def _refusal(self, after: Cost) -> str | None:
        """Why `after` must not be spent."""
        limits, spent = self._config, self.spent
        if limits.calls is not None and spent.calls + 1 > limits.calls:
            return f"coach.budget.calls={limits.calls} is spent"
        if limits.tokens is not None and after.tokens > limits.tokens:
            left = limits.tokens - spent.tokens
            return f"coach.budget.tokens={limits.tokens} is spent but for {left}"
        if limits.dollars is not None and after.usd > limits.dollars:
            left = limits.dollars - spent.cost_usd
            return f"coach.budget.dollars={limits.dollars:g} is spent but for {left:.4f}"
        return None
