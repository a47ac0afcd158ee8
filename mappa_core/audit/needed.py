"""What it would take to tell, where an audit cannot: an experiment's size, or further actions.

An experiment's actions follow from the coach's own noise: n differences with deviation d have the
standard error d / sqrt(n), and both one-sided tests of an unbiased coach pass with probability p
where that is margin / (z(0.95) + z((1 + p) / 2)) (Julious 2004). All of k comparisons pass with
80 % where each does with p = 1 - 0.2 / k; the smallest of them has but its share of the actions.
"""

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np
from scipy import special

from mappa_core.audit.findings import AuditInput, AuditResult
from mappa_core.audit.frame import Frame
from mappa_core.audit.statistics.noise import noise
from mappa_core.audit.statistics.paired import ALIKE, PairedEffect
from mappa_core.audit.statistics.pairs import TODAY
from mappa_core.audit.statistics.verdicts import ALPHA, POWER

FIRST_EXPERIMENT = 200
"""Actions to begin with where the coach's noise was never measured."""
APART = 3
"""Comparisons besides those of types and agents: padding, the rubric's order, asked today."""
ANCHORS_OF_A_TYPE = 8
"""With which a point more for that type alone is found in time at noise of a point, also where
scores heap, so that less than a point shows; 6 do where they do not."""


def more_anchors(seen: AuditInput) -> str | None:
    """Say in words how many anchors notice a coach that turns kinder to one task type.

    None where the run has as many, or none from which the coach's noise is known.
    """
    scores = seen.anchors.scores
    found = noise(scores.repeats) if len(scores.known) else None
    kinds = len(set(scores.task_types))
    if found is None or anchors_for(kinds, found.within_deviation) <= len(scores.known):
        return None
    wanted = anchors_for(kinds, found.within_deviation)
    return (
        f"{len(scores.known)} anchors watched this coach; one whose noise is "
        f"{found.within_deviation:.2g} points takes {wanted} (audit.anchors={wanted}) for a change "
        "of 1 point for one task type to be found within 30 iterations with 90 %"
    )


def anchors_for(task_types: int, deviation: float) -> int:
    """Anchors that find a coach 1 point kinder to one task type within 30 iterations in 90 %.

    The mean of a type's anchors has to be as sure whatever the noise. From four types on, the
    threshold of a single one, which is in proportion to their number, takes one more of each.

    Args:
        task_types: Of the run, among which the anchors are spread.
        deviation: Of the coach's scores within an action, in points.
    """
    each = ANCHORS_OF_A_TYPE + (task_types > 3)
    return task_types * max(math.ceil(each * deviation**2), 1)


def what_would_tell(seen: AuditInput, result: AuditResult) -> str:
    """Say in words what would turn "cannot tell" into a verdict on an unbiased coach.

    Args:
        seen: What the audit looked at.
        result: What it found; of whatever verdict.
    """
    if result.experiment:
        return _after_experiment(seen, result.experiment)
    size, why = experiment_size(seen)
    asked = f"`mappa audit {seen.run.name} --experiment {size}` ({why})"
    more = _further_actions(result)
    return asked if more is None else f"{asked}, or some {more:,} more actions on further problems"


def experiment_size(seen: AuditInput) -> tuple[int, str]:
    """Actions that an experiment needs, and what that rests on, in words."""
    scored = seen.frame.take(~np.isnan(seen.frame.score))
    deviation = coach_noise(seen)
    if deviation is None:
        return min(FIRST_EXPERIMENT, len(scored)), "which also measures the coach's noise"
    wanted = actions_for(scored, deviation, seen.margin)
    if wanted > len(scored):
        return len(scored), f"all that there are, of {wanted:,} for a chance of {POWER:.0%}"
    return wanted, f"a chance of {POWER:.0%} at the coach's noise of {deviation:.2g} points"


def coach_noise(seen: AuditInput) -> float | None:
    """Deviation of the coach's scores within an action, in points; None where it has no repeats."""
    found = noise(seen.anchors.scores.repeats)
    if found is None and seen.ratings.trainer is not None:
        found = noise(seen.ratings.table(seen.ratings.trainer))
    return None if found is None else found.within_deviation


def actions_for(frame: Frame, deviation: float, margin: float) -> int:
    """Actions after which an experiment on an unbiased coach says so with 80 %.

    Args:
        frame: The run's scored actions; the experiment's are spread as they are.
        deviation: Of the coach's scores within an action, in points.
        margin: Of the verdict, in points.
    """
    shares, comparisons = list(_shares(frame)), _comparisons(frame)
    power = 1 - (1 - POWER) / comparisons
    reach = float(special.ndtri(1 - ALPHA) + special.ndtri((1 + power) / 2))
    differences = 2 * (deviation * reach / margin) ** 2
    return math.ceil(max(differences, ALIKE) / min(shares))


def _shares(frame: Frame) -> Iterator[float]:
    """Yield the share of the actions that each comparison of an experiment has."""
    agents = frame.agent.present()
    whole = np.ones(len(frame), dtype=bool)
    outcomes = (whole, frame.success == 1, frame.success == 0)
    own = [frame.agent.codes == agent for agent in agents]
    for one, other in combinations(frame.task_type.present(), 2):
        pair = np.isin(frame.task_type.codes, (one, other))
        parts = (pair & work & outcome for work in (whole, *own) for outcome in outcomes)
        yield from (float(part.mean()) for part in parts if part.any())
    yield from (float(work.mean()) for work in own)
    yield from (float((frame.task_type.codes == code).mean()) for code in frame.task_type.present())


def _comparisons(frame: Frame) -> int:
    agents, types = len(frame.agent.present()), len(frame.task_type.present())
    strata = 3 * (1 + (agents if agents > 1 else 0))
    return types * (types - 1) // 2 * strata + agents + types + APART


def _further_actions(result: AuditResult) -> int | None:
    """What the regression needs besides; None where no number of actions would do."""
    undecided = [
        each.judged
        for each in (*result.effects, *result.cells)
        if each.judged.verdict == "cannot tell"
    ]
    worst = max((each.more_actions for each in undecided), default=0)
    hopeless = any(
        each.unknown.measured + max(each.unknown.missing_high, -each.unknown.missing_low)
        >= each.margin
        for each in undecided
    )
    return None if hopeless or not worst else worst


def _after_experiment(seen: AuditInput, effects: tuple[PairedEffect, ...]) -> str:
    """A larger experiment, or the coach of then where today's is another."""
    name, asked = seen.run.name, len(seen.experiment.action.names)
    if any(each.rule == "as stored" and each.verdict == "biased" for each in effects):
        return (
            "no experiment on today's coach, which no longer scores as it did: ask the version of "
            f"it that trained, by `mappa audit {name} --against`"
        )
    undecided = [
        each
        for each in effects
        if each.judged is not None
        and each.verdict == "cannot tell"
        # Equivalence does not take that each part is seen to be as it was.
        and (each.rule != "as stored" or each.subject == TODAY)
    ]
    factors = (1 + each.judged.more_actions / each.actions for each in undecided if each.judged)
    scored = int((~np.isnan(seen.frame.score)).sum())
    wanted = math.ceil(asked * max(factors, default=2.0))
    if asked >= scored:
        return f"more actions than the {scored:,} that there are, all of which were asked about"
    size = min(wanted, scored)
    least = "" if wanted <= scored else f", all that there are, of {wanted:,}"
    return f"`mappa audit {name} --experiment {size}`{least} (it adds to the {asked} asked so far)"
