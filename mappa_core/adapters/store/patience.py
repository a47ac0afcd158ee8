"""Waiting for a Postgres that went away.

Every statement of the store may be repeated, so a write whose commit was cut off is made again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import stamina

from mappa_core.domain.errors import StoreUnreachable

T = TypeVar("T")


def _unheard(message: str) -> None:
    """For who has nobody to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, whom to tell, and what to try."""

    seconds: float = 0.0
    """From the first failure; 0 fails at once."""
    tell: Callable[[str], None] = _unheard
    """Called with one line for a person at every attempt; must not raise."""
    revive: Callable[[], object] | None = None
    """Starts the server where it is ours to start; may raise `StoreError`."""


def with_patience(work: Callable[[], T], patience: Patience) -> T:
    """The result of `work`, tried again for as long as Postgres does not answer.

    Raises:
        StoreUnreachable: It did not come back in time.
    """
    attempts = stamina.retry_context(
        on=StoreUnreachable,
        attempts=None if patience.seconds else 1,
        timeout=patience.seconds or None,
        wait_initial=0.1,
        wait_max=2.0,
        wait_jitter=0.1,
    )
    failure: StoreUnreachable | None = None
    for attempt in attempts:
        with attempt:
            if failure is not None:
                patience.tell(f"waiting for Postgres (attempt {attempt.num}): {failure}")
                _revive(patience)
            try:
                return work()
            except StoreUnreachable as error:
                failure = error
                raise
    raise AssertionError("the last attempt returns or raises")


def _revive(patience: Patience) -> None:
    if patience.revive is not None:
        patience.revive()
