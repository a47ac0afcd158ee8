"""What scores did to the updates: a bias's share of them, and what another coach would have made.

Advantages are linear in the scores up to the normaliser, so each splits into what the bias made
of it and the rest. For one agent's update with credited scores s, bias b of them (`credited`) and
centring C (by problem and visit where the baseline is the group's, by batch otherwise),

    A = k C(s),   A_bias = k C(b),   share = sum w A_bias A / sum w A^2

k is what the estimator scales by, and is read off the advantages (least squares): 1 / sd for
REINFORCE++, a constant where nothing normalises, for GRPO its mean over the problems. C takes the
mean with the action's own episode in it: k / (k - 1) less than without, where groups are of k.

Another coach's update differs from the one there was already because scores are noisy. How far is
read off a second scoring by the coach that trained: the floor.

A bias that all of a group's actions share is taken away by the group baseline: its share is zero,
and what is left of it is what differs within a group.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from mappa_core.audit.frame import Floats, Frame, Ints, Mask
from mappa_core.audit.records import CreditRule
from mappa_core.audit.statistics.credited import credited, visits
from mappa_core.audit.statistics.regression import Estimate, cluster_sums, contrast, fit
from mappa_core.audit.statistics.verdicts import ALPHA

DIFFERENT_COSINE = 0.9
"""An update whose advantages' cosine is below this share of the floor's would have differed."""
FEWEST_PROBLEMS = 4
"""Of an update, from which one can tell that it is."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBias:
    """A bias's part in one agent's update of one iteration."""

    agent: str
    iteration: int
    share: float
    """Of the advantages' weighted square that goes with the bias; may be below 0 where the bias
    worked against what was learned."""
    pull: float
    """Sum of weight times the bias's advantage over the favoured actions: above 0, the bias made
    them likelier."""
    gap: float
    """Mean advantage of the favoured actions less that of the others; 0 where all are of one."""
    gap_of_bias: float
    """What the bias made of that gap."""
    actions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The same actions of an update, scored again by the coach that trained."""

    flipped: int
    cosine: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherUpdate:
    """One agent's update of one iteration, under the coach it had and under another."""

    agent: str
    iteration: int
    actions: int
    """That both coaches scored."""
    flipped: int
    """Whose advantage has the other sign."""
    cosine: float
    """Weighted, of the two sets of advantages; 1 is the same update, up to its length."""
    floor: Floor | None = None
    """None where the coach that trained did not score the actions again."""
    differs: bool | None = None
    """Whether it is shown that the update would have pulled elsewhere than its own coach would,
    asked again; None where that cannot be known."""


def update_shares(frame: Frame, bias: Floats, rule: CreditRule) -> Iterator[UpdateBias]:
    """Yield the bias's part in every update.

    Args:
        frame: All the run's actions.
        bias: (N,) points the coach gave too much.
        rule: What its actions were held to account for.
    """
    seen, part = _as_credited(frame, rule), credited(frame, bias, rule)
    for rows in _updates(seen, ~np.isnan(seen.score)):
        yield _update_share(seen.take(rows), bias[rows], part[rows], by_problem=rule.by_problem)


def other_updates(
    frame: Frame, other: Floats, again: Floats, rule: CreditRule
) -> Iterator[OtherUpdate]:
    """Yield each update as another coach's scores would have made it.

    Args:
        frame: All the run's actions.
        other: (N,) the other coach's scores of the same rows, NaN where there is none; an action
            counts where it gave all that the action was held to account for.
        again: (N,) a second scoring by the coach that trained; the floor counts where all of an
            update's rows have one.
        rule: What its actions were held to account for.
    """
    seen, other, again = _three(frame, other, again, rule)
    for rows in _updates(seen, ~np.isnan(seen.score) & ~np.isnan(other)):
        yield _other_update(seen.take(rows), other[rows], again[rows], by_problem=rule.by_problem)


def flips_beyond(frame: Frame, other: Floats, again: Floats, rule: CreditRule) -> Estimate | None:
    """The share of advantages that another coach turns, less the share that its own noise turns.

    Args:
        frame: All the run's actions.
        other: (N,) the other coach's scores, NaN where there is none.
        again: (N,) a second scoring by the coach that trained.
        rule: What its actions were held to account for.

    Returns:
        The difference within the action, problems as clusters; None below two problems.
    """
    turned: list[Floats] = []
    problems: list[Ints] = []
    seen, other, again = _three(frame, other, again, rule)
    usable = ~np.isnan(seen.score) & ~np.isnan(other) & ~np.isnan(again)
    for rows in _updates(seen, usable):
        update = seen.take(rows)
        groups = _groups(update, by_problem=rule.by_problem)
        had, would, floor = (
            advantages(scores, groups, update.weight)
            for scores in (update.score, other[rows], again[rows])
        )
        turned.append((had * would < 0).astype(float) - (had * floor < 0))
        problems.append(update.problem.codes)
    codes = np.concatenate([*problems, np.zeros(0, dtype=np.int64)])
    if len(np.unique(codes)) < 2:
        return None
    values = np.concatenate(turned)
    return contrast(fit(cluster_sums(np.ones((len(values), 1)), values, codes)), np.ones(1))


def _as_credited(frame: Frame, rule: CreditRule) -> Frame:
    """The actions as updates saw them: credited with their scores, and compared by visit."""
    return replace(frame, score=credited(frame, frame.score, rule), turn=visits(frame))


def _three(
    frame: Frame, other: Floats, again: Floats, rule: CreditRule
) -> tuple[Frame, Floats, Floats]:
    """The actions, and what they would have been credited with by two other scorings."""
    seen = _as_credited(frame, rule)
    return seen, credited(frame, other, rule), credited(frame, again, rule)


def _updates(frame: Frame, usable: Mask) -> Iterator[Mask]:
    """Yield the usable rows of each agent's update, iteration by iteration."""
    usable = usable & ~np.isnan(frame.advantage)
    for agent in frame.agent.present():
        own = usable & (frame.agent.codes == agent)
        for iteration in np.unique(frame.iteration[own]):
            yield own & (frame.iteration == iteration)


def _update_share(rows: Frame, bias: Floats, credit: Floats, *, by_problem: bool) -> UpdateBias:
    """The part of an update that goes with its actions' bias, and with what they got by it."""
    weight = rows.weight / max(rows.weight.sum(), 1e-300)
    groups = _groups(rows, by_problem=by_problem)
    scores, part = _centred(rows.score, groups), _centred(credit, groups)
    variance = float((weight * scores**2).sum())
    scale = float((weight * scores * rows.advantage).sum()) / variance if variance > 0 else 0.0
    of_bias = scale * part
    square = float((weight * rows.advantage**2).sum())
    favoured = bias > float((weight * bias).sum())
    return UpdateBias(
        agent=rows.agent.names[int(rows.agent.codes[0])],
        iteration=int(rows.iteration[0]),
        share=float((weight * of_bias * rows.advantage).sum()) / square if square > 0 else 0.0,
        pull=float((weight * of_bias)[part > 0].sum()),
        gap=_gap(rows.advantage, weight, favoured),
        gap_of_bias=_gap(of_bias, weight, favoured),
        actions=len(rows),
    )


def _gap(values: Floats, weight: Floats, favoured: Mask) -> float:
    """Weighted mean of the favoured less that of the others."""
    if not weight[favoured].any() or not weight[~favoured].any():
        return 0.0
    means = [np.average(values[side], weights=weight[side]) for side in (favoured, ~favoured)]
    return float(means[0] - means[1])


def _other_update(rows: Frame, other: Floats, again: Floats, *, by_problem: bool) -> OtherUpdate:
    groups, weight = _groups(rows, by_problem=by_problem), rows.weight
    scores = np.stack([rows.score, other, again])
    had, would, floor = (advantages(each, groups, weight) for each in scores)
    known = not np.isnan(again).any()
    return OtherUpdate(
        agent=rows.agent.names[int(rows.agent.codes[0])],
        iteration=int(rows.iteration[0]),
        actions=len(rows),
        flipped=_flipped(had, would),
        cosine=_cosine(had, would, weight),
        floor=Floor(flipped=_flipped(had, floor), cosine=_cosine(had, floor, weight))
        if known
        else None,
        differs=_differs(scores, groups, weight, rows.problem.codes) if known else None,
    )


def _differs(scores: Floats, groups: Ints, weight: Floats, problem: Ints) -> bool | None:
    """Whether the cosine is below the floor's share by more than chance, one-sided at 5 %.

    The two are of noisy scores: an update of few actions has a lower cosine than its floor every
    other time. Its error is the jackknife's over problems, with Student's t.
    """
    problems = np.unique(problem)
    count = len(problems)
    if count < FEWEST_PROBLEMS:
        return None
    below = _below(scores, groups, weight)
    without = np.array(
        [
            _below(scores[:, kept], groups[kept], weight[kept])
            for kept in problem != problems[:, None]
        ]
    )
    error = float(((without - without.mean()) ** 2).sum() * (count - 1) / count) ** 0.5
    return below > float(special.stdtrit(count - 1, 1 - ALPHA)) * error


def _below(scores: Floats, groups: Ints, weight: Floats) -> float:
    """How far another coach's cosine is below the floor's share; of (3, n) scores."""
    codes = np.unique(groups, return_inverse=True)[1]
    had, would, floor = (advantages(each, codes, weight) for each in scores)
    return DIFFERENT_COSINE * _cosine(had, floor, weight) - _cosine(had, would, weight)


def _flipped(had: Floats, would: Floats) -> int:
    return int((had * would < 0).sum())


def _cosine(had: Floats, would: Floats, weight: Floats) -> float:
    length = float(np.sqrt((weight * had**2).sum() * (weight * would**2).sum()))
    return float((weight * had * would).sum()) / length if length > 0 else 1.0


def advantages(scores: Floats, groups: Ints, weight: Floats) -> Floats:
    """(score - baseline) / root mean square over one update; all 0 where nothing varies."""
    share = weight / weight.sum() if weight.sum() > 0 else np.full(len(weight), 1 / len(weight))
    centred = _centred(scores, groups)
    deviation = float(np.sqrt((share * centred**2).sum()))
    return centred / deviation if deviation > ROUNDING else np.zeros_like(centred)


def _groups(rows: Frame, *, by_problem: bool) -> Ints:
    if not by_problem:
        return np.zeros(len(rows), dtype=np.int64)
    turns = int(rows.turn.max(initial=0)) + 1
    return np.unique(rows.problem.codes * turns + rows.turn, return_inverse=True)[1]


def _centred(values: Floats, groups: Ints) -> Floats:
    """Subtract the group's mean."""
    return values - (np.bincount(groups, weights=values) / np.bincount(groups))[groups]
