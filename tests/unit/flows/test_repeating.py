"""Without a task run, what failed outside is done again as often."""

import asyncio

import pytest

from flows import rollout
from flows.rollout import RETRIES, repeated
from mappa_core.core.errors import StoreError


class Failing:
    """Fails so many times, and then succeeds."""

    def __init__(self, times: int, error: Exception) -> None:
        self.times, self.error = times, error

    async def work(self, asked: int) -> int:
        if self.times:
            self.times -= 1
            raise self.error
        return asked


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout, "RETRY_SECONDS", 0)


def test_a_failure_outside_is_repeated() -> None:
    failing = Failing(RETRIES, StoreError("refused"))
    assert asyncio.run(repeated(failing.work)(3)) == 3  # pyright: ignore[reportArgumentType]


def test_one_that_stays_is_raised() -> None:
    failing = Failing(RETRIES + 1, StoreError("refused"))
    with pytest.raises(StoreError, match="refused"):
        asyncio.run(repeated(failing.work)(3))  # pyright: ignore[reportArgumentType]


def test_a_fault_of_ours_is_not_repeated() -> None:
    failing = Failing(1, KeyError("typo"))
    with pytest.raises(KeyError):
        asyncio.run(repeated(failing.work)(3))  # pyright: ignore[reportArgumentType]
