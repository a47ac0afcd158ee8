"""Coach minus somebody else, by task type and agent: people who labelled a sample, or a coach.

In a cell, one agent's actions on one task type, labels are of a simple random sample. With scores
s of all actions and labels y of some, prediction-powered inference estimates the mean difference as

    theta = c mean over all of s + mean over labelled of (s - y - c s)

which is unbiased for any c; it is taken as what makes the variance smallest (PPI++, Angelopoulos,
Duchi & Zrnic, arXiv 2311.01453). A task type's or an agent's difference is that of its cells, each
with its share of the actions, and so does not depend on how many labels a cell was given. Errors
are clustered by problem.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.frame import Floats, Ints, LabelledScores, Mask
from mappa_core.audit.statistics.regression import Estimate, p_value

FEWEST = 2
"""Labels in each cell that a difference rests on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The actions that a difference is of; of two task types, the second one's are taken off."""

    name: str
    types: tuple[str, ...] = ()
    """One, or two to be compared; none for all."""
    agent: str = ""

    @property
    def where(self) -> str:
        """In SQL."""
        named = ", ".join(map(sql.quoted, self.types))
        parts = [f"task_type IN ({named})"] if self.types else []
        parts += [f"agent = {sql.quoted(self.agent)}"] if self.agent else []
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean of the coach's scores minus the others', in points, over all actions of a domain."""

    domain: Domain
    estimate: Estimate
    trust: float
    """c: how much of the coach's scores it used, in [0, 1]."""
    labels: int
    actions: int
    problems: int
    """With labels."""


def differences(data: LabelledScores) -> Iterator[Difference]:
    """By task type, agent and both, and between task types; those with labels in every cell."""
    data = data.scored()
    for domain in _domains(data):
        found = _difference(data, domain)
        if found is not None:
            yield found


def _domains(data: LabelledScores) -> Iterator[Domain]:
    types = [data.task_type.names[code] for code in data.task_type.present()]
    agents = [data.agent.names[code] for code in data.agent.present()]
    yield from (Domain(name=kind, types=(kind,)) for kind in types)
    for one, other in combinations(types, 2):
        yield Domain(name=f"{one} rather than {other}", types=(one, other))
    if len(agents) > 1:
        yield from (Domain(name=agent, agent=agent) for agent in agents)
        yield from (
            Domain(name=f"{agent} on {kind}", types=(kind,), agent=agent)
            for agent in agents
            for kind in types
        )


def _difference(data: LabelledScores, domain: Domain) -> Difference | None:
    rows = _rows(data, domain)
    kind, agent = data.task_type.codes[rows], data.agent.codes[rows]
    cell = np.unique(kind * len(data.agent.names) + agent, return_inverse=True)[1]
    labelled = data.sampled[rows] & ~np.isnan(data.labels[rows])
    count = np.bincount(cell)
    known = np.bincount(cell[labelled], minlength=len(count))
    if not len(count) or known.min() < FEWEST:
        return None
    scores, apart = data.scores[rows], (data.scores - data.labels)[rows]
    signs = _signs(data, domain, kind)
    weights = _weights(cell, kind if len(domain.types) > 1 else np.zeros_like(kind), signs)
    trust = _trust(scores, apart, cell, labelled)
    residual = np.where(labelled, apart - trust * scores, 0.0)
    middle = np.bincount(cell, weights=residual) / known
    means = np.bincount(cell, weights=scores) / count
    # What each action moves the estimate by; summed up by problem, whose actions are alike.
    moved = weights[cell] * trust * (scores - means[cell]) / count[cell]
    moved += np.where(labelled, weights[cell] * (residual - middle[cell]) / known[cell], 0.0)
    problem = data.problem.codes[rows]
    clusters = len(np.unique(problem[labelled]))
    by_problem = np.bincount(problem, weights=moved).astype(np.float64)
    value = float((weights * (trust * means + middle)).sum())
    return Difference(
        domain=domain,
        # The means of the cells, and what is taken of the scores, were fitted to the labels.
        estimate=_estimate(value, by_problem, clusters, len(count) + (trust > 0)),
        trust=trust,
        labels=int(labelled.sum()),
        actions=len(cell),
        problems=clusters,
    )


def _rows(data: LabelledScores, domain: Domain) -> Mask:
    kinds = [data.task_type.names.index(kind) for kind in domain.types]
    rows = np.isin(data.task_type.codes, kinds) if kinds else np.ones(len(data.scores), dtype=bool)
    if domain.agent:
        rows &= data.agent.codes == data.agent.names.index(domain.agent)
    return rows


def _signs(data: LabelledScores, domain: Domain, kind: Ints) -> Floats:
    """(n,) 1, and -1 for the type that is taken off."""
    if len(domain.types) < 2:
        return np.ones(len(kind))
    return np.where(kind == data.task_type.names.index(domain.types[1]), -1.0, 1.0)


def _weights(cell: Ints, group: Ints, signs: Floats) -> Floats:
    """(cells,) the share of each in its group, with its sign."""
    sizes = np.bincount(group)[group]
    return np.bincount(cell, weights=signs / sizes).astype(np.float64)


def _trust(scores: Floats, apart: Floats, cell: Ints, labelled: Mask) -> float:
    """The slope of difference on score within cells, less for few unlabelled actions."""
    own = cell[labelled]
    here = np.bincount(own)

    def centred(values: Floats) -> Floats:
        return values - (np.bincount(own, weights=values) / here)[own]

    score, difference = centred(scores[labelled]), centred(apart[labelled])
    square, rest = float((score**2).sum()), int((~labelled).sum())
    if square == 0 or rest == 0:
        return 0.0
    slope = float((score * difference).sum()) / square
    return float(np.clip(slope * rest / len(scores), 0, 1))


def _estimate(value: float, moved: Floats, labelled: int, fitted: int) -> Estimate:
    """The estimate with its error.

    Args:
        value: Of the difference.
        moved: By problem, what its actions move it by.
        labelled: Problems with labels.
        fitted: How many numbers were fitted to the labels.
    """
    freedom = labelled - fitted
    if freedom < 1:
        return Estimate(
            value=value, standard_error=float("inf"), degrees_of_freedom=0.0, p_value=1.0
        )
    error = float((moved**2).sum() * labelled / freedom) ** 0.5
    return Estimate(
        value=value,
        standard_error=error,
        degrees_of_freedom=float(freedom),
        p_value=p_value(value, error, freedom) if error > 0 else 1.0,
    )
