"""The table of providers, models that coaches ask; one module and one row each.

    case ─▶ coach ─▶ rates, budget, retries ─▶ provider ─▶ reply ─▶ score | Unscored

A provider sends one request and names what went wrong; everything else is decided by the coach.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRow:
    """One kind of provider: where its code is, what it needs, which settings it takes."""

    module: str
    """In `coach.providers`; its `open_provider(config, settings)` makes a `provider.Provider`. That
    of one of ours is told as well where servers are that are not of this machine."""
    needs: str | None
    """The environment variable without which it cannot be asked; `mappa doctor` looks for it."""
    also_reads: tuple[str, ...] = ()
    """Further variables that doctor shows."""
    keyless_at_base_url: bool = False
    """Whether a server at an address of one's own asks for no key."""
    wire: str
    """Its wire format among those of `mappa_cli.provider_stub`."""
    thinking: Literal["thinking_budget", "reasoning_effort"] | None = "thinking_budget"
    """Which key of the configuration says how long it may think; None: nothing can."""
    keeps_contexts: bool = False
    """Whether it takes `context_cache`."""
    is_ours: bool = False
    """Whether MAPPA starts and stops its server, which is late when it is silent, not when a call
    takes long."""


PROVIDERS: Mapping[str, ProviderRow] = MappingProxyType(
    {
        "gemini": ProviderRow(
            module="gemini", needs="GOOGLE_API_KEY", wire="gemini", keeps_contexts=True
        ),
        "vertex": ProviderRow(
            module="gemini",
            needs="VERTEX_PROJECT",
            also_reads=("GOOGLE_APPLICATION_CREDENTIALS",),
            wire="gemini",
            keeps_contexts=True,
        ),
        "openai": ProviderRow(
            module="openai",
            needs="OPENAI_API_KEY",
            keyless_at_base_url=True,
            wire="openai",
            thinking="reasoning_effort",
        ),
        "anthropic": ProviderRow(module="anthropic", needs="ANTHROPIC_API_KEY", wire="anthropic"),
        "local": ProviderRow(
            module="local", needs=None, wire="openai", thinking=None, is_ours=True
        ),
    }
)
"""Every provider by the name that `coach.backend` gives it."""
