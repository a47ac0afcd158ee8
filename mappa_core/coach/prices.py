"""What coaching costs: whole numbers of picodollars, so that sums are exact.

A price of 0.30 dollars per million tokens is 300,000 picodollars per token.
"""

from dataclasses import dataclass

from mappa_core.coach.config import PricesConfig

PICODOLLARS = 10**12
CHARACTERS_PER_TOKEN = 4.0
"""Of English and code, about; what a call will take is estimated by it, what it took is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one call or many, as the provider counts them."""

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
        """The tokens of both."""
        return Usage(
            prompt=self.prompt + other.prompt,
            cached=self.cached + other.cached,
            reply=self.reply + other.reply,
            thought=self.thought + other.thought,
        )


def cost(usage: Usage, prices: PricesConfig) -> int:
    """What `usage` costs, in picodollars."""
    cached_usd = prices.input_usd if prices.cached_usd is None else prices.cached_usd
    fresh = usage.prompt - usage.cached
    return (
        fresh * _per_token(prices.input_usd)
        + usage.cached * _per_token(cached_usd)
        + (usage.reply + usage.thought) * _per_token(prices.output_usd)
    )


def dollars(picodollars: int) -> float:
    """Picodollars as dollars."""
    return picodollars / PICODOLLARS


def estimated_tokens(*texts: str) -> int:
    """About how many tokens `texts` are."""
    return round(sum(len(text) for text in texts) / CHARACTERS_PER_TOKEN)


def _per_token(usd_per_million: float) -> int:
    return round(usd_per_million * PICODOLLARS / 10**6)
