"""What a coach is to those that use it."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from mappa_core.core.records.scores import CoachCase, CoachIdentity, CoachScore, Spending, Unscored


class Coach(Protocol):
    """Reads one action and its evidence, and judges it."""

    @property
    def identity(self) -> CoachIdentity:
        """Which coach scores, with which rubric."""
        ...

    async def score(self, case: CoachCase) -> CoachScore | Unscored:
        """A score in [0, 10] with a rationale, or the reason there is none.

        Raises:
            CoachError: The coach cannot work at all.
        """
        ...


@runtime_checkable
class ReadingCoach(Protocol):
    """Says what of a case it judges by; a `Coach` may be one."""

    def reads(self, case: CoachCase) -> object:
        """All of a case that reaches its judgement, repeats aside.

        What is equal for two cases cannot tell them apart, so neither can their scores.
        """
        ...


@runtime_checkable
class BudgetedCoach(Protocol):
    """Keeps count of what a coach costs; a `Coach` may be one."""

    @property
    def spent(self) -> Spending:
        """What it has taken so far, with what it was told to begin with."""
        ...

    def resume_budget(self, spent: Spending) -> None:
        """Begin with what the run has spent already."""
        ...


@runtime_checkable
class SolvingCoach(Protocol):
    """Solves tasks itself, before it judges work on them; a `Coach` may be one."""

    async def solve(self, statements: Iterable[str]) -> None:
        """Solve tasks that cases will come of, so that none of these waits for it."""
        ...
