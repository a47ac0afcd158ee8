"""The paper's Fair metrics: accuracy, F1 and RMSE over all episodes, failures charged.

    classification    accuracy, F1                          higher is better
    regression        RMSE in per cent of the labels' range  lower is better

Averages over the episodes that happened to work flatter a team that mostly fails. Here an episode
without a valid submission is charged what a constant prediction gets on the same labels, as the
paper charges accuracy 0.5 for a failed run of two classes (arXiv 2601.23228; what it charges for
the other two it does not say).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from mappa_core.core.records.episodes import Figure
from mappa_core.core.records.runs import EpisodeSummary
from mappa_core.evaluate.comparison import Comparison, Verdict, compare

FAIR = ("accuracy", "f1", "rmse_percent_of_range")
"""Which figures, by the names they are stored under."""
LOWER_IS_BETTER = frozenset({"rmse_percent_of_range"})
_TURNED: Mapping[Verdict, Verdict] = {"better": "worse", "worse": "better"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FairFigure:
    """One Fair metric before and after."""

    name: str
    """One of `FAIR`."""
    task_type: str
    comparison: Comparison
    charged: tuple[int, int]
    """Episodes before and after that were charged the constant's value."""

    @property
    def verdict(self) -> Verdict:
        """What the interval says, where lower is better the other way round."""
        said = self.comparison.verdict
        return _TURNED.get(said, said) if self.name in LOWER_IS_BETTER else said


def fair_figures(
    before: Sequence[EpisodeSummary],
    after: Sequence[EpisodeSummary],
    *,
    resamples: int,
    seed: int,
) -> tuple[FairFigure, ...]:
    """Compare the Fair metrics of two policy steps, paired by problem, kind by kind.

    A problem of which no episode has figures, before or after, is not in them: nothing says what a
    failure would be charged. Empty where that is all of them, as where answers are right or wrong.

    Args:
        before: Held-out episodes of the earlier step.
        after: Of the later one, on the same problems.
        resamples: Bootstrap resamples.
        seed: Of the resampling.
    """
    found: list[FairFigure] = []
    for kind in sorted({one.task_type for one in after}):
        sides = [[one for one in side if one.task_type == kind] for side in (before, after)]
        for name in FAIR:
            constants = _constants(name, [*sides[0], *sides[1]])
            if not constants:
                continue
            values = [_values(name, side, constants) for side in sides]
            # An error has no upper end; a failure costs a constant's.
            span = max(constants.values()) if name in LOWER_IS_BETTER else 1.0
            found.append(
                FairFigure(
                    name=name,
                    task_type=kind,
                    comparison=compare(*values, resamples=resamples, seed=seed, span=span),
                    charged=(_charged(name, sides[0]), _charged(name, sides[1])),
                )
            )
    return tuple(found)


def _figure(name: str, episode: EpisodeSummary) -> Figure | None:
    return next((each for each in episode.figures or () if each.name == name), None)


def _constants(name: str, episodes: Sequence[EpisodeSummary]) -> Mapping[UUID, float]:
    """What a constant gets of the figure, by problem."""
    told = [(one.problem_id, _figure(name, one)) for one in episodes]
    return {problem: figure.constant for problem, figure in told if figure is not None}


def _values(
    name: str, episodes: Sequence[EpisodeSummary], constants: Mapping[UUID, float]
) -> Mapping[UUID, Sequence[float]]:
    values: dict[UUID, list[float]] = defaultdict(list)
    for one in episodes:
        if one.problem_id in constants:
            figure = _figure(name, one)
            charged = constants[one.problem_id] if figure is None else figure.charged
            values[one.problem_id].append(charged)
    return values


def _charged(name: str, episodes: Sequence[EpisodeSummary]) -> int:
    figures = [_figure(name, one) for one in episodes]
    return sum(figure is None or figure.value is None for figure in figures)
