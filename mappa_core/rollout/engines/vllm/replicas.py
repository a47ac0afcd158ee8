"""Servers that serve the same policies, and which of them a request goes to."""

from collections import OrderedDict
from collections.abc import Collection, Generator
from contextlib import contextmanager
from uuid import UUID

REMEMBERED = 10_000
"""Problems whose replica is known; the one that was not asked about for longest is forgotten."""


class Balance:
    """Chooses among replicas: a problem's requests stay with one, problems are spread evenly.

    The prompts of a problem begin alike, and what a server has read of one it keeps.
    """

    def __init__(self, replicas: int) -> None:
        """Begin with nothing under way at any of them."""
        self._under_way = [0] * replicas
        self._problems = [0] * replicas
        self._of: OrderedDict[UUID, int] = OrderedDict()

    @contextmanager
    def chosen(self, problem: UUID | None, among: Collection[int] | None = None) -> Generator[int]:
        """Give the replica, from 0, that does a request while the block lasts.

        A new problem, and a request of none, goes where least is under way, and of those to the
        replica that was given the fewest problems. `among` are those that are up; None: all. A
        problem whose replica is not up moves to another one, and stays there.
        """
        up = range(len(self._under_way)) if among is None else among
        replica = self._of.get(problem) if problem is not None else None
        if replica is None or replica not in up:
            replica = min(up, key=lambda one: (self._under_way[one], self._problems[one], one))
            self._problems[replica] += 1
        if problem is not None:
            self._of[problem] = replica
            self._of.move_to_end(problem)
            if len(self._of) > REMEMBERED:
                self._of.popitem(last=False)
        self._under_way[replica] += 1
        try:
            yield replica
        finally:
            self._under_way[replica] -= 1
