"""Which comparisons the audit makes: the gaps between task types, for equal work.

    main      every pair of types, over all episodes and within right and within wrong ones
    cells     the same for each agent, in each quarter of the iterations, and for each agent in each
              quarter; right minus wrong work, which is what a group baseline learns from; and
              length, per doubling

Biases can cancel over outcomes, agents and time, so each, and each two and three of them together,
has comparisons of its own. A part of the run in which a pair of types that it trained on cannot be
compared has a comparison that tells nothing: no bias there is ruled out. Of three types
or more every pair is compared: against the mean of the others, one type that is paid too much makes
the innocent look paid too little. What else goes with score is an association: it may be deserved,
and is never called bias.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations, product

import numpy as np

from mappa_core.audit.frame import Floats, Frame, Mask
from mappa_core.audit.records import Stratum
from mappa_core.audit.statistics.design import (
    Regression,
    Work,
    constant,
    split_design,
    whole_design,
)
from mappa_core.audit.statistics.layout import agent_turns, windows
from mappa_core.audit.statistics.observational import Gap, Word
from mappa_core.audit.statistics.regression import Estimate, estimable
from mappa_core.audit.statistics.sensitivity import unknown

NOT_KNOWN = Estimate(value=np.nan, standard_error=np.inf, degrees_of_freedom=0.0, p_value=1.0)
"""Of a comparison that cannot be made."""


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """One comparison before it is worked out."""

    model: Regression
    weights: Floats
    """All 0 where the rows cannot be compared."""
    factor: str
    """`task_type`, `length`, or what an association is with."""
    subject: str
    """E.g. `regression`."""
    against: str
    """E.g. `classification`."""
    stratum: Stratum = "all"
    """Which episodes."""
    cell: str = ""
    """Which of them, e.g. `solver` or `iterations 1 to 5`; empty for all."""
    rows: Mask
    """(N,) of the model's, those counted."""
    counted: str = "true"
    """The same in SQL."""
    types: int = 2
    """How many task types were compared."""
    at_most: Word = "biased"

    @property
    def outcome(self) -> Floats:
        """The contrast of right work with wrong work."""
        return self.model.where(("outcome:right", 1.0))

    def gap(self) -> Gap:
        """What the verdict needs to know."""
        outcome = float(self.outcome @ self.model.fitted.coefficients)
        return Gap(
            estimate=self.model.estimate(self.weights) if self.weights.any() else NOT_KNOWN,
            unknown=unknown(self.model, self.weights, outcome),
            actions=int(self.rows.sum()),
            at_most=self.at_most,
            difficulty_measured=self.model.work.skills.measured,
        )


def main_contrasts(frame: Frame) -> Iterator[Contrast]:
    """Yield the main comparisons of a run."""
    work = _work(frame)
    if work is not None:
        yield from _whole(work)
        yield from _split(work)


def cell_contrasts(frame: Frame) -> Iterator[Contrast]:
    """Yield the comparisons within parts of a run."""
    work = _work(frame)
    if work is None:
        return
    yield from _discrimination(work)
    yield from _length(work)
    types: dict[str, tuple[int, ...]] = {}
    for name, part in _agents(work):
        types[name] = part.frame.task_type.present()
        if _comparable(part):
            yield from _whole(part, name)
            yield from _split(part, name)
    for cell, quarter in _quarters(frame):
        yield from _within(work, quarter, work.frame.task_type.present(), cell)
        for name, part in _agents(quarter):
            yield from _within(work, part, types[name], f"{name}, {cell}")


def _agents(work: Work) -> Iterator[tuple[str, Work]]:
    """Yield each agent's name and work, where there are several."""
    agents = work.frame.agent.present()
    for code in agents if len(agents) > 1 else ():
        name = work.frame.agent.names[code]
        yield name, work.take(work.frame.agent.codes == code, f"agent = '{_escaped(name)}'")


def _quarters(frame: Frame) -> Iterator[tuple[str, Work]]:
    """Yield the quarters of the iterations, in words, and their work, where there are several."""
    parts = windows(frame.iteration[~np.isnan(frame.success)])
    for first, last in parts if len(parts) > 1 else ():
        inside = (frame.iteration >= first) & (frame.iteration <= last)
        part = Work.of(frame, inside, f"iteration BETWEEN {first} AND {last}")
        yield f"iterations {first} to {last}", part


def contrasts_of(frame: Frame) -> tuple[list[Contrast], list[Contrast]]:
    """All main comparisons of a run and all within its parts, for those that need them at once."""
    return list(main_contrasts(frame)), list(cell_contrasts(frame))


def association_contrasts(frame: Frame) -> Iterator[Contrast]:
    """Yield what else goes with score, where the data can tell."""
    work = _work(frame)
    if work is None:
        return
    model = Regression.of(work, whole_design(work))
    names = [column.name for column in model.columns]
    others = [n for n in names if not n.startswith(("constant", "task_type", "agent"))]
    for name in [*others, *(name for name in names if name.startswith("agent:"))]:
        weights = model.where((name, 1.0))
        if estimable(model.fitted, weights):
            factor, _, level = name.partition(":")
            yield Contrast(
                model=model,
                weights=weights,
                factor=factor,
                subject=level or name,
                against=_UNITS.get(name) or _reference(work.frame, factor),
                rows=work.scored,
            )


def _work(frame: Frame) -> Work | None:
    """The actions with outcomes; None where there is nothing to compare."""
    if np.isnan(frame.success).all():
        return None
    work = Work.of(frame)
    return work if _comparable(work) else None


def _comparable(work: Work) -> bool:
    scored = work.frame.take(work.scored)
    return len(scored.task_type.present()) > 1 and scored.problem_count > 1


def _whole(work: Work, cell: str = "") -> Iterator[Contrast]:
    """Yield every pair of types over all episodes."""
    model = Regression.of(work, whole_design(work))
    yield from _pairs(model, "all", "", cell)


def _split(work: Work, cell: str = "") -> Iterator[Contrast]:
    """Yield every pair of types within right and within wrong episodes."""
    model = Regression.of(work, split_design(work))
    yield from _pairs(model, "right", "/right", cell)
    yield from _pairs(model, "wrong", "/wrong", cell)


def _within(work: Work, part: Work, types: tuple[int, ...], cell: str) -> Iterator[Contrast]:
    """Yield every pair of types over a part's episodes and by outcome, as far as it played them.

    Args:
        work: The run's.
        part: Of it.
        types: Codes of those to compare.
        cell: The part in words.
    """
    made: set[tuple[str, str, Stratum]] = set()
    for each in chain(_whole(part, cell), _split(part, cell)) if _comparable(part) else ():
        made.add((each.subject, each.against, each.stratum))
        yield each
    names = work.frame.task_type.names
    for (against, subject), stratum in product(combinations(types, 2), _COUNTED):
        rows = _inside(part.frame, stratum) & np.isin(
            part.frame.task_type.codes, (subject, against)
        )
        if rows.any() and (names[subject], names[against], stratum) not in made:
            model = Regression.of(work, (constant(work),))
            yield Contrast(
                model=model,
                weights=np.zeros(1),
                factor="task_type",
                subject=names[subject],
                against=names[against],
                stratum=stratum,
                cell=cell,
                rows=work.scored & np.isin(work.places, part.places[rows]),
                counted=f"{part.where} AND {_COUNTED[stratum]}",
                types=len(types),
            )


def _pairs(model: Regression, stratum: Stratum, suffix: str, cell: str) -> Iterator[Contrast]:
    frame = model.work.frame
    types, names = frame.task_type.present(), frame.task_type.names
    inside = model.work.scored & _inside(frame, stratum)
    for against, subject in combinations(types, 2):
        weights = _gap(model, names[subject], names[against], suffix)
        sides = [bool((inside & (frame.task_type.codes == c)).any()) for c in (subject, against)]
        if estimable(model.fitted, weights) and all(sides):
            yield Contrast(
                model=model,
                weights=weights,
                factor="task_type",
                subject=names[subject],
                against=names[against],
                stratum=stratum,
                cell=cell,
                rows=inside,
                counted=_COUNTED[stratum],
                types=len(types),
            )


def _discrimination(work: Work) -> Iterator[Contrast]:
    """Yield, for every pair of types, the difference between what right work gets more."""
    model = Regression.of(work, split_design(work))
    frame = model.work.frame
    names, types = frame.task_type.names, frame.task_type.present()
    for against, subject in combinations(types, 2):
        right = _gap(model, names[subject], names[against], "/right")
        wrong = _gap(model, names[subject], names[against], "/wrong")
        if estimable(model.fitted, right) and estimable(model.fitted, wrong):
            yield Contrast(
                model=model,
                weights=right - wrong,
                factor="task_type",
                subject=names[subject],
                against=names[against],
                cell="right minus wrong",
                rows=work.scored,
                types=len(types),
                at_most="suspected",
            )


def _length(work: Work) -> Iterator[Contrast]:
    """Yield the points per doubling of the length, within types; longer work may deserve them."""
    model = Regression.of(work, whole_design(work))
    weights = model.where(("length", 1.0))
    if estimable(model.fitted, weights):
        yield Contrast(
            model=model,
            weights=weights,
            factor="length",
            subject="length",
            against=_UNITS["length"],
            rows=work.scored,
            at_most="cannot tell",
        )


def _gap(model: Regression, subject: str, against: str, suffix: str) -> Floats:
    """Weights of one type minus another; the first type is the zero."""
    return model.where(
        (f"task_type:{subject}{suffix}", 1.0), (f"task_type:{against}{suffix}", -1.0)
    )


def _inside(frame: Frame, stratum: Stratum) -> Mask:
    """(N,) which rows are of the stratum."""
    if stratum == "all":
        return np.ones(len(frame), dtype=bool)
    return frame.success == (stratum == "right")


def _reference(frame: Frame, factor: str) -> str:
    """The level, or the agent and turn, that the others are compared with."""
    if factor == "level":
        return f"level {frame.level[~np.isnan(frame.score)].min()}"
    if factor == "window":
        return "problems first played in iterations {} to {}".format(*windows(frame.iteration)[0])
    agent, turn = agent_turns(frame)[0]
    return f"{frame.agent.names[agent]}, turn {turn}"


def _escaped(name: str) -> str:
    return name.replace("'", "''")


_COUNTED: dict[Stratum, str] = {"all": "true", "right": "success", "wrong": "NOT success"}


_UNITS = {
    "length": "per doubling of the tokens",
    "tool:used": "no tool call",
    "tool:failed": "a tool call that worked",
    "level": "per level of difficulty",
    "outcome:right": "wrong episodes",
    "skill": "per standard deviation of what the problem's other episodes say",
    "iteration": "from the first to the last iteration",
}
