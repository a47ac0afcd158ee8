"""Waits for something outside that went away, where its work may be repeated.

work ─▶ result
  └─ Unreachable ─▶ say so once ─▶ revive, pause, again ... ─▶ say that it is back
                                    └─ time is up ─▶ the error
"""

import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

import stamina

from mappa_core.core.errors import Unreachable

T = TypeVar("T")


class OutageRetry:
    """Repeats work while what it needs is away; shared by all threads that wait for one thing."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        tell: Callable[[str], None] | None = None,
        revive: Callable[[], object] | None = None,
    ) -> None:
        """Wait as long as this.

        Args:
            seconds: From the first failure of each piece of work; 0 fails at once.
            tell: Given one line for a person when the wait begins and when it is over; None for
                a wait in silence.
            revive: Starts what is away, where that is ours to start; may fail like the work.
        """
        self._seconds = seconds
        self._tell = tell
        self._revive = revive
        self._away_since: float | None = None
        self._lock = Lock()

    def run(self, work: Callable[[], T]) -> T:
        """The result of `work`, tried again while what it needs is unreachable.

        Raises:
            Unreachable: It did not come back in time.
        """
        if not self._seconds:
            return work()
        failed = False
        for attempt in stamina.retry_context(
            on=Unreachable,
            attempts=None,
            timeout=self._seconds,
            wait_initial=0.1,
            wait_max=2.0,
            wait_jitter=0.1,
        ):
            with attempt:
                try:
                    if failed and self._revive is not None:
                        self._revive()
                    result = work()
                except Unreachable as error:
                    failed = True
                    self._away(error)
                    raise
                self._back()
                return result
        raise AssertionError("the last attempt returns or raises")

    def _away(self, error: Unreachable) -> None:
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = time.monotonic()
        self._say(f"{error}; waiting up to {self._seconds:.0f} s")

    def _back(self) -> None:
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            self._say(f"back after {time.monotonic() - since:.0f} s; going on")

    def _say(self, message: str) -> None:
        if self._tell is not None:
            self._tell(message)
