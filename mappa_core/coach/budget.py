"""What a run may still spend. A call is reserved before it is made and settled by its count.

    spent + under way + this call    within the limits: it is made
    spent             + this call    within the limits: it waits until a call under way is settled
                                     beyond them: it is refused

A call under way is expected at its most expensive, and takes far less.
"""

import asyncio
from dataclasses import dataclass

from mappa_core.coach.config import BudgetConfig
from mappa_core.coach.prices import PICODOLLARS, dollars
from mappa_core.core.records.scores import Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """One call, expected or counted."""

    tokens: int
    picodollars: int

    def __add__(self, other: "Bill") -> "Bill":
        """Both."""
        return Bill(
            tokens=self.tokens + other.tokens, picodollars=self.picodollars + other.picodollars
        )

    def __sub__(self, other: "Bill") -> "Bill":
        """One without the other."""
        return self + Bill(tokens=-other.tokens, picodollars=-other.picodollars)


_NOTHING = Bill(tokens=0, picodollars=0)


class Budget:
    """Counts what coaches of one run spend, and says no before it is too much."""

    def __init__(self, config: BudgetConfig) -> None:
        self._config = config
        self._calls = 0
        self._spent = self._under_way = _NOTHING
        self._waiting: list[asyncio.Future[None]] = []

    def resume(self, spent: Spending) -> None:
        """Begin with what the run has spent already."""
        self._calls = spent.calls
        self._spent = Bill(tokens=spent.tokens, picodollars=round(spent.cost_usd * PICODOLLARS))

    async def reserve(self, bill: Bill) -> str | None:
        """Take `bill` into account as soon as it fits, or say why it never will."""
        while (refusal := self._refusal(self._spent + bill)) is None:
            if self._refusal(self._spent + self._under_way + bill) is None:
                self._calls += 1
                self._under_way += bill
                break
            await self._settlement()
        return refusal

    def settle(self, reserved: Bill, counted: Bill) -> None:
        """Replace what was expected by what was counted."""
        self._under_way -= reserved
        self._spent += counted
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    @property
    def spent(self) -> Spending:
        """What was counted so far; of calls under way, that they were made."""
        cost_usd = dollars(self._spent.picodollars)
        return Spending(calls=self._calls, tokens=self._spent.tokens, cost_usd=cost_usd)

    async def _settlement(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    def _refusal(self, after: Bill) -> str | None:
        """Why `after` must not be spent."""
        limits, spent = self._config, self.spent
        if limits.calls is not None and spent.calls + 1 > limits.calls:
            return f"coach.budget.calls={limits.calls} is spent"
        if limits.tokens is not None and after.tokens > limits.tokens:
            left = limits.tokens - spent.tokens
            return f"coach.budget.tokens={limits.tokens} is spent but for {left}"
        if limits.dollars is not None and dollars(after.picodollars) > limits.dollars:
            left = limits.dollars - spent.cost_usd
            return f"coach.budget.dollars={limits.dollars:g} is spent but for {left:.4f}"
        return None
