"""What is away is waited for, and a person is told twice: that it is gone and that it is back."""

import pytest

from mappa_core.core.errors import StoreError, StoreUnreachable
from mappa_core.core.outage import OutageRetry


class Flaky:
    """Fails so many times, then works."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise StoreUnreachable("no Postgres")
        return "done"


def test_what_works_is_done_once_and_nothing_is_said() -> None:
    said: list[str] = []
    work = Flaky(0)
    assert OutageRetry(seconds=5, tell=said.append).run(work) == "done"
    assert (work.calls, said) == (1, [])


def test_what_is_away_is_revived_and_waited_for() -> None:
    said: list[str] = []
    revived: list[bool] = []
    outage_retry = OutageRetry(seconds=30, tell=said.append, revive=lambda: revived.append(True))
    assert outage_retry.run(Flaky(2)) == "done"
    assert said == ["no Postgres; waiting up to 30 s", "back after 0 s; going on"]
    assert len(revived) == 2


def test_waiting_ends() -> None:
    with pytest.raises(StoreUnreachable):
        OutageRetry(seconds=0.3).run(Flaky(1_000))


def test_none_fails_at_once() -> None:
    work = Flaky(1)
    with pytest.raises(StoreUnreachable):
        OutageRetry().run(work)
    assert work.calls == 1


def test_a_refusal_is_not_repeated() -> None:
    calls: list[bool] = []

    def refused() -> None:
        calls.append(True)
        raise StoreError("no")

    with pytest.raises(StoreError):
        OutageRetry(seconds=30).run(refused)
    assert len(calls) == 1
