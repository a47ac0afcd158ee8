"""The audit's comparisons (`contrasts`), worked out and judged as families.

Main comparisons and cells share the 5 % in halves. A coach is equivalent only if all of them are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias, TypeVar

import numpy as np

from mappa_core.audit.frame import Frame
from mappa_core.audit.records import Stratum
from mappa_core.audit.statistics.contrasts import (
    Contrast,
    association_contrasts,
    cell_contrasts,
    main_contrasts,
)
from mappa_core.audit.statistics.looks import spent
from mappa_core.audit.statistics.observational import (
    Gap,
    ObservationalVerdict,
    Word,
    judge_observed,
)
from mappa_core.audit.statistics.regression import Estimate
from mappa_core.audit.statistics.sensitivity import NOTHING, Unknown
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS

FAMILIES = 2
"""Main comparisons and cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One comparison, in points of score; its words are those of `Contrast`."""

    factor: str
    subject: str
    against: str
    stratum: Stratum
    cell: str
    estimate: Estimate
    actions: int
    problems: int
    types: int
    sql: str
    """Gives the estimate from the views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect(Comparison):
    """A comparison that was judged together with its family."""

    judged: ObservationalVerdict


def bias_family(frame: Frame, margin: float = MARGIN_POINTS, look: int = 1) -> tuple[Effect, ...]:
    """All comparisons whose verdicts make the run's; empty where there is nothing to compare."""
    main = task_type_effects(frame, margin, look)
    return (*main, *cell_effects(frame, main, margin, look))


def sharing(look: int) -> float:
    """Among how many the 5 % are shared at one look: families, and the looks before and after."""
    return FAMILIES / spent(look)


def task_type_effects(
    frame: Frame, margin: float = MARGIN_POINTS, look: int = 1
) -> tuple[Effect, ...]:
    """Every pair of task types, over all episodes and within each outcome.

    Empty where there is but one task type or fewer than two problems. `look` is the number of
    times that the run is looked at, this one included (`looks`).
    """
    found = _worked_out(main_contrasts(frame))
    return _judged(found, wholes(found), margin, look)


def cell_effects(
    frame: Frame, main: Sequence[Effect], margin: float = MARGIN_POINTS, look: int = 1
) -> tuple[Effect, ...]:
    """The same by agent, by quarter of the run, by both, and right against wrong; and length.

    Args:
        frame: The run's actions.
        main: Its effects of task type, which say what unmeasured difficulty could do.
        margin: Of the verdicts.
        look: As for the main comparisons.
    """
    known = {(e.subject, e.against): e.judged.unknown for e in main if e.stratum == "all"}
    return _judged(_worked_out(cell_contrasts(frame)), known, margin, look)


def associations(frame: Frame) -> Iterator[Comparison]:
    """What else goes with score, everything else held: agent, turn, length, tool, iteration."""
    return map(_compared, association_contrasts(frame))


Wholes: TypeAlias = dict[tuple[str, str], Unknown]
"""By pair of task types: what could move its gap over all episodes."""


Pair = TypeVar("Pair", Contrast, Comparison)


def wholes(found: Iterable[tuple[Pair, Gap]]) -> Wholes:
    """What could move the gaps over all episodes, among the main comparisons."""
    return {
        (each.subject, each.against): gap.unknown for each, gap in found if each.stratum == "all"
    }


def within_wholes(found: Iterable[tuple[Pair, Gap]], known: Wholes) -> list[Gap]:
    """The gaps, none of which unmeasured difficulty could move by less than it could the whole."""
    return [gap.within(known.get((each.subject, each.against), NOTHING)) for each, gap in found]


def words(effects: Sequence[Effect]) -> list[Word]:
    """The verdicts of effects."""
    return [effect.judged.verdict for effect in effects]


def _worked_out(contrasts: Iterator[Contrast]) -> list[tuple[Comparison, Gap]]:
    """Work out comparisons one by one: of a large run, few regressions fit into memory."""
    found: list[tuple[Comparison, Gap]] = []
    for contrast in contrasts:
        gap = contrast.gap()
        found.append((_compared(contrast, gap.estimate), gap))
    return found


def _judged(
    found: Sequence[tuple[Comparison, Gap]], known: Wholes, margin: float, look: int
) -> tuple[Effect, ...]:
    """Judge comparisons as one family."""
    verdicts = judge_observed(within_wholes(found, known), margin, sharing(look))
    return tuple(
        Effect(**{field.name: getattr(each, field.name) for field in fields(each)}, judged=judged)
        for (each, _), judged in zip(found, verdicts, strict=True)
    )


def _compared(contrast: Contrast, estimate: Estimate | None = None) -> Comparison:
    frame, model = contrast.model.work.frame, contrast.model
    return Comparison(
        factor=contrast.factor,
        subject=contrast.subject,
        against=contrast.against,
        stratum=contrast.stratum,
        cell=contrast.cell,
        estimate=model.estimate(contrast.weights) if estimate is None else estimate,
        actions=int(contrast.rows.sum()),
        problems=len(np.unique(frame.problem.codes[contrast.rows])),
        types=contrast.types,
        sql=model.query(contrast.weights, contrast.counted),
    )
