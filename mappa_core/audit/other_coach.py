"""What if another coach had scored? Each update as its stored second scores would have made it."""

from dataclasses import dataclass
from uuid import UUID

import numpy as np

from mappa_core.audit.frame import Floats, Mask, Ratings
from mappa_core.audit.statistics.agreement import BesideTrainer, beside_trainer
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.updates import OtherUpdate, flips_beyond, other_updates
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import NotFound
from mappa_core.core.records.scores import CoachIdentity


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A run's updates as another coach would have made them."""

    scorer: str
    """Its full name."""
    updates: tuple[OtherUpdate, ...]
    beyond: Estimate | None
    """Share of the advantages that it turns, less those that the coach that trained turns when it
    is asked again; None where it was not."""


def updates_under(store: AuditStore, name: str, coach: Scorer) -> Against:
    """Each update as the second scores of another coach would have made it.

    Args:
        store: Where the run is.
        name: The run.
        coach: The other coach.

    Raises:
        NotFound: No such run, or no or several such coaches scored its actions.
    """
    run = store.run(name)
    rows, frame = store.frame_with_ids(run.id)
    ratings = store.ratings(run.id)
    scorer = _only_scorer(ratings, coach)
    other = _in_rows(ratings, ratings.means(scorer), rows)
    again = _in_rows(ratings, ratings.again(), rows)
    return Against(
        scorer=ratings.scorer.names[scorer],
        updates=tuple(other_updates(frame, other, again, run.rule)),
        beyond=flips_beyond(frame, other, again, run.rule),
    )


def agreement_with(
    store: AuditStore, name: str, identity: CoachIdentity
) -> tuple[BesideTrainer, ...]:
    """Compare a coach's stored scores of a run with those that trained, by agent.

    Nothing where it scored no action that has such a score. Of the coach that trained, its scores
    that did not train count.

    Raises:
        NotFound: No such run.
    """
    ratings = store.ratings(store.run(name).id)
    begins, ends = f"{identity.coach} {identity.model} ", f", rubric {identity.rubric_version}"
    # A provider may have answered with several versions of the model.
    codes = [
        code
        for code, scorer in enumerate(ratings.scorer.names)
        if scorer.startswith(begins) and scorer.endswith(ends)
    ]
    first = np.unique(ratings.action.codes, return_index=True)[1]
    return tuple(
        beside_trainer(
            _by_action(ratings, ratings.trained == 1),
            _by_action(ratings, (ratings.trained == 0) & np.isin(ratings.scorer.codes, codes)),
            ratings.agent[first],
            ratings.problem.codes[first],
        )
    )


def _by_action(ratings: Ratings, rows: Mask) -> Floats:
    """(A,) the mean of some of the scores of every action, NaN where there is none."""
    rows = rows & ~np.isnan(ratings.score)
    codes, many = ratings.action.codes[rows], len(ratings.action.names)
    counts = np.bincount(codes, minlength=many)
    sums = np.bincount(codes, weights=ratings.score[rows], minlength=many)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


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


def _in_rows(ratings: Ratings, scores: Floats, rows: tuple[UUID, ...]) -> Floats:
    """(N,) the scores of the actions `rows`, NaN where there is none."""
    known = dict(zip(ratings.action.names, scores, strict=True))
    return np.array([known.get(str(row), np.nan) for row in rows])
