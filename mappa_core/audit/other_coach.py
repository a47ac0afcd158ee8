"""What if another coach had scored? Each update as its stored second scores would have made it."""

from dataclasses import dataclass
from uuid import UUID

import numpy as np

from mappa_core.audit.frame import Floats, Ratings
from mappa_core.audit.statistics.updates import OtherUpdate, other_updates
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import NotFound


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Which of the coaches that scored a run is meant."""

    name: str
    """Or its beginning: coach, model, version."""
    rubric: str | None = None

    def codes(self, ratings: Ratings) -> list[int]:
        """The second scorers this could be."""
        ending = "" if self.rubric is None else f", rubric {self.rubric}"
        return [
            code
            for code, name in _second_scorers(ratings).items()
            if name.startswith(self.name) and name.endswith(ending)
        ]

    def missing(self, store: AuditStore, run: str) -> bool:
        """Whether it has not scored any action of the run.

        Raises:
            NotFound: No such run.
        """
        return not self.codes(store.ratings(store.run(run).id))


def updates_under(
    store: AuditStore, name: str, coach: Scorer
) -> tuple[str, tuple[OtherUpdate, ...]]:
    """Each update as the second scores of another coach would have made it.

    Args:
        store: Where the run is.
        name: The run.
        coach: The other coach.

    Returns:
        The scorer's full name, and the updates.

    Raises:
        NotFound: No such run, or no or several such coaches scored its actions.
    """
    run = store.run(name)
    rows, frame = store.frame_with_ids(run.id)
    ratings = store.ratings(run.id)
    scorer = _only_scorer(ratings, coach)
    other = _in_rows(ratings, scorer, rows)
    updates = tuple(other_updates(frame, other, by_problem=run.by_problem))
    return ratings.scorer.names[scorer], updates


def _second_scorers(ratings: Ratings) -> dict[int, str]:
    codes = ratings.scorer.present()
    return {code: ratings.scorer.names[code] for code in codes if code != ratings.trainer}


def _only_scorer(ratings: Ratings, coach: Scorer) -> int:
    codes = coach.codes(ratings)
    if len(codes) != 1:
        known = "; ".join(_second_scorers(ratings).values())
        raise NotFound(
            f"{len(codes)} second coaches begin with {coach.name}: there is {known or 'none'}; "
            "name one in full, or score the run again with `mappa rescore`"
        )
    return codes[0]


def _in_rows(ratings: Ratings, scorer: int, rows: tuple[UUID, ...]) -> Floats:
    """(N,) a scorer's mean scores of the actions `rows`, NaN where there is none."""
    means = dict(zip(ratings.action.names, ratings.means(scorer), strict=True))
    return np.array([means.get(str(row), np.nan) for row in rows])
