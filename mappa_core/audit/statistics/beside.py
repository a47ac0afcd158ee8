"""Coach minus somebody else, by task type and agent: people who labelled a sample, or a coach.

In a cell, one agent's actions on one task type, labels are of a simple random sample. With scores
s of all actions and labels y of some, prediction-powered inference estimates the mean difference as

    theta = c mean over all of s + mean over labelled of (s - y - c s)

which is unbiased for any c; it is taken as what makes the variance smallest (PPI++, Angelopoulos,
Duchi & Zrnic, arXiv 2311.01453). A task type's or an agent's difference is that of its cells, each
with its share of the actions, and so does not depend on how many labels a cell was given. Errors
are clustered by problem. Each cell's spread is of its own problems with labels, c of them: it is
scaled by c / (c - 1), and Student's t has Satterthwaite's degrees of freedom, near 2 where a cell
of three problems makes up most of the error.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TooFewLabels:
    """A domain whose difference is not known."""

    domain: Domain
    cells: tuple[str, ...]
    """With fewer than `FEWEST` labels: `agent on type`."""
    labels: int
    actions: int


def differences(data: LabelledScores) -> Iterator[Difference | TooFewLabels]:
    """By task type, agent and both, and between task types; nothing without any label."""
    data = data.scored()
    if (data.sampled & ~np.isnan(data.labels)).any():
        for domain in _domains(data):
            if (rows := _rows(data, domain)).any():
                yield _difference(data, domain, rows)


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


def _difference(data: LabelledScores, domain: Domain, rows: Mask) -> Difference | TooFewLabels:
    kind, agent = data.task_type.codes[rows], data.agent.codes[rows]
    cells, cell = np.unique(kind * len(data.agent.names) + agent, return_inverse=True)
    labelled = data.sampled[rows] & ~np.isnan(data.labels[rows])
    count = np.bincount(cell)
    known = np.bincount(cell[labelled], minlength=len(count))
    if len(short := cells[known < FEWEST]):
        return TooFewLabels(
            domain=domain,
            cells=tuple(_named(data, int(code)) for code in short),
            labels=int(labelled.sum()),
            actions=len(cell),
        )
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
    problem = np.unique(data.problem.codes[rows], return_inverse=True)[1]
    shape = (len(count), int(problem.max()) + 1)
    by_problem = np.zeros(shape)
    np.add.at(by_problem, (cell, problem), moved)
    seen = np.zeros(shape, dtype=bool)
    seen[cell[labelled], problem[labelled]] = True
    value = float((weights * (trust * means + middle)).sum())
    return Difference(
        domain=domain,
        estimate=_estimate(value, by_problem, seen, fitted=int(trust > 0)),
        trust=trust,
        labels=int(labelled.sum()),
        actions=len(cell),
        problems=int(seen.any(axis=0).sum()),
    )


def _named(data: LabelledScores, code: int) -> str:
    kind, agent = divmod(code, len(data.agent.names))
    return f"{data.agent.names[agent]} on {data.task_type.names[kind]}"


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


def _estimate(value: float, moved: Floats, seen: Mask, fitted: int) -> Estimate:
    """The estimate with its error.

    Args:
        value: Of the difference.
        moved: (cells, problems) what a problem's actions of a cell move it by.
        seen: (cells, problems) whether any of them has a label.
        fitted: How many numbers, beside the mean of each cell, were fitted to the labels.
    """
    problems = seen.sum(axis=1)
    freedom = float((problems - 1).sum())
    if problems.min() < FEWEST or freedom <= fitted:
        return Estimate(
            value=value, standard_error=float("inf"), degrees_of_freedom=0.0, p_value=1.0
        )
    scaled = moved * (problems / (problems - 1))[:, None] ** 0.5
    left = 1 - fitted / freedom
    error = float((scaled.sum(axis=0) ** 2).sum() / left) ** 0.5
    if error == 0:
        return Estimate(
            value=value, standard_error=0.0, degrees_of_freedom=freedom - fitted, p_value=1.0
        )
    # What each problem is expected to add, of its cells' own: those of one problem go together.
    variances = (scaled**2).sum(axis=1)
    expected = ((variances / (problems * (problems - 1)) ** 0.5)[:, None] * seen).sum(axis=0)
    freedom = left * float(variances.sum()) ** 2 / float((expected**2).sum())
    return Estimate(
        value=value,
        standard_error=error,
        degrees_of_freedom=freedom,
        p_value=p_value(value, error, freedom),
    )
