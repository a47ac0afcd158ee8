"""The coach bench's memory figure sees what a coach keeps, and takes no remembered answer."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from mappa_cli.benches.coach import growth
from mappa_core.core.errors import CoachError
from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore

KEPT_BYTES = 10_000


@dataclass
class KeepingCoach:
    """Keeps something of each of its last `at_most` scores."""

    at_most: int
    attempts: int = 1
    kept: list[bytes] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    @property
    def identity(self) -> CoachIdentity:
        raise NotImplementedError

    async def score(self, case: CoachCase) -> CoachScore:
        self.kept = [*self.kept, bytes(KEPT_BYTES)][-self.at_most :]
        # As the model coach, which answers an equal case from what it remembers.
        attempts = 0 if case.text in self.asked else self.attempts
        self.asked.add(case.text)
        return replace(CoachScore(value=5, rationale=case.text), attempts=attempts)


def grown(coach: KeepingCoach) -> int:
    return asyncio.run(growth(coach, remembered=30, scores=10, rounds=3))


def test_what_is_remembered_on_purpose_is_no_growth() -> None:
    assert grown(KeepingCoach(at_most=30)) < KEPT_BYTES


def test_what_is_kept_of_every_score_is() -> None:
    # Three rounds of ten after the one that is compared with.
    assert grown(KeepingCoach(at_most=1000)) == pytest.approx(30 * KEPT_BYTES, rel=0.05)


def test_an_answer_that_was_remembered_is_none() -> None:
    with pytest.raises(CoachError, match="remembered, not asked for"):
        grown(KeepingCoach(at_most=30, attempts=0))
