"""What a run may still spend. A call is reserved before it is made and settled by its count."""

from dataclasses import dataclass

from mappa_core.coaching.prices import PICODOLLARS, dollars
from mappa_core.config import BudgetConfig
from mappa_core.domain.records import Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """One call, expected or counted."""

    tokens: int
    picodollars: int


class Budget:
    """Counts what coaches of one run spend, and says no before it is too much."""

    def __init__(self, config: BudgetConfig) -> None:
        self._config = config
        self._calls = self._tokens = self._picodollars = 0

    def resume(self, spent: Spending) -> None:
        """Begin with what the run has spent already."""
        self._calls = spent.calls
        self._tokens = spent.tokens
        self._picodollars = round(spent.cost_usd * PICODOLLARS)

    def reserve(self, bill: Bill) -> str | None:
        """Take `bill` into account, or say why it does not fit."""
        limits, after = self._config, self._picodollars + bill.picodollars
        if limits.calls is not None and self._calls + 1 > limits.calls:
            return f"coach.budget.calls={limits.calls} is spent"
        if limits.tokens is not None and self._tokens + bill.tokens > limits.tokens:
            return f"coach.budget.tokens={limits.tokens} is spent but for {self._left_tokens()}"
        if limits.dollars is not None and dollars(after) > limits.dollars:
            return f"coach.budget.dollars={limits.dollars:g} is spent ({self.spent.cost_usd:.4f})"
        self._calls += 1
        self._add(bill, 1)
        return None

    def settle(self, reserved: Bill, counted: Bill) -> None:
        """Replace what was expected by what was counted."""
        self._add(reserved, -1)
        self._add(counted, 1)

    @property
    def spent(self) -> Spending:
        """So far, calls under way included."""
        return Spending(calls=self._calls, tokens=self._tokens, cost_usd=dollars(self._picodollars))

    def _add(self, bill: Bill, times: int) -> None:
        self._tokens += times * bill.tokens
        self._picodollars += times * bill.picodollars

    def _left_tokens(self) -> int:
        return (self._config.tokens or 0) - self._tokens
