"""Which scorings of an experiment are compared, within the same action.

same work, called by another type, agent, rubric order   must not matter
padded                                                   must not pay: a rubric may ask for
                                                         few words
trimmed, told of the outcome                             may matter: measured, never judged
asked again                                              the floor: the coach's own noise
today against the stored score                           is this the coach that trained?
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np

from mappa_core.audit import sql
from mappa_core.audit.experiment_sql import paired
from mappa_core.audit.frame import Experiment, Factor, Floats, Ints, Mask
from mappa_core.audit.records import Change
from mappa_core.audit.statistics.layout import windows

Rule: TypeAlias = Literal["must not matter", "must not pay", "may matter", "as stored"]
TODAY = "asked today"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Differences within actions: one scoring minus another."""

    subject: str
    rule: Rule
    difference: Floats
    """(n,) points; NaN where a score is missing."""
    one: Ints
    """(n,) the scorings' rows, and those of what they are compared with; -1 where there is none."""
    other: Ints
    sign: Floats
    """(n,) 1, or -1 where the difference is turned round."""
    problem: Ints
    """(n,)"""
    seen: bool
    """Whether the change reaches the coach in any of them."""
    sql: str
    stratum: str = "all"
    against: str = "the same action"
    types: tuple[str, str] | None = None
    """The task type that the work was called by, and the one instead of which."""


def all_pairs(data: Experiment) -> Iterator[Pairs]:
    """Every comparison that the scorings allow."""
    scorings = _Scorings(data)
    yield from _types(scorings)
    yield from _names(scorings)
    yield scorings.against_plain("rubric turned round", "must not matter", "rubric order")
    yield scorings.against_plain("padded", "must not pay", "padded")
    yield from _today(scorings)
    yield scorings.against_plain("asked again", "may matter", "again")
    yield scorings.against_plain("trimmed", "may matter", "trimmed")
    yield from _told(scorings)


class _Scorings:
    """Finds the scoring that another one is compared with."""

    def __init__(self, data: Experiment) -> None:
        self.data = data
        self.places = np.arange(len(data))
        # A change that the coach does not see leaves the plain scoring.
        self.places = np.where(data.unseen, self.against("as it was"), self.places)

    def rows(self, change: Change) -> Mask:
        return _is(self.data.change, change)

    def against(self, change: Change) -> Ints:
        """(M,) the scoring of each row's action under a change that was made once; -1 for none."""
        rows = np.flatnonzero(self.rows(change))
        found = np.full(len(self.data.action.names), -1)
        found[self.data.action.codes[rows]] = self.places[rows]
        return found[self.data.action.codes]

    def against_plain(self, subject: str, rule: Rule, change: Change) -> Pairs:
        return self.pairs(subject, rule, self.rows(change), f"one.change = '{change}'")

    def pairs(
        self, subject: str, rule: Rule, rows: Mask, where: str, other: Change = "as it was"
    ) -> Pairs:
        """The rows minus their actions' scorings under `other`."""
        one, against = self.places[rows], self.against(other)[rows]
        return Pairs(
            subject=subject,
            rule=rule,
            difference=at(self.data.score, one) - at(self.data.score, against),
            one=one,
            other=against,
            sign=np.ones(len(one)),
            problem=self.data.problem.codes[rows],
            seen=not bool(self.data.unseen[rows].all()),
            sql=paired(where, f"other.change = '{other}'"),
        )


def _types(scorings: _Scorings) -> Iterator[Pairs]:
    """Each two task types: the same work called by one name rather than the other."""
    data = scorings.data
    called = scorings.rows("task type")
    names = sorted({data.task_type.names[code] for code in data.task_type.present()})
    for one, other in combinations(names, 2):
        up = called & _is(data.task_type, other) & _is(data.put, one)
        down = called & _is(data.task_type, one) & _is(data.put, other)
        for stratum, rows, where in _strata(data):
            yield _turned(scorings, (one, other), (up & rows, down & rows), stratum, where)


def _turned(
    scorings: _Scorings, types: tuple[str, str], rows: tuple[Mask, Mask], stratum: str, where: str
) -> Pairs:
    """Differences with the first type's name on the same side, whichever was the work's own."""
    one, other = (sql.quoted(name) for name in types)
    up, down = rows
    asked = (
        f"one.change = 'task type' AND ((one.task_type = {other} AND one.put = {one}) "
        f"OR (one.task_type = {one} AND one.put = {other})){where}"
    )
    sign = f"CASE WHEN one.put = {one} THEN 1 ELSE -1 END"
    pairs = scorings.pairs(f"called {types[0]}", "must not matter", up | down, asked)
    signs = np.where(up, 1.0, -1.0)[up | down]
    return replace(
        pairs,
        subject=f"called {types[0]} rather than {types[1]}",
        difference=pairs.difference * signs,
        sign=signs,
        sql=paired(asked, "other.change = 'as it was'", f"({sign}) * (one.score - other.score)"),
        stratum=stratum,
        types=types,
    )


def _strata(data: Experiment) -> Iterator[tuple[str, Mask, str]]:
    """All, right, wrong; where there are several agents, also each one's: opposite ones cancel."""
    everything = ("", np.ones(len(data), dtype=bool), "")
    outcomes = (
        everything,
        ("right", data.success == 1, " AND one.success"),
        ("wrong", data.success == 0, " AND NOT one.success"),
    )
    agents, names = data.agent.present(), data.agent.names
    own = [
        (names[code], data.agent.codes == code, f" AND one.agent = {sql.quoted(names[code])}")
        for code in (agents if len(agents) > 1 else ())
    ]
    for agent, is_agent, by_agent in (everything, *own):
        for outcome, is_outcome, by_outcome in outcomes:
            name = ", ".join(filter(None, (agent, outcome))) or "all"
            yield name, is_agent & is_outcome, by_outcome + by_agent


def _names(scorings: _Scorings) -> Iterator[Pairs]:
    """Each agent's work under another's name; over all agents of a circle it would cancel."""
    data, called = scorings.data, scorings.rows("agent name")
    for code in data.agent.present():
        own = called & (data.agent.codes == code)
        for put in data.put[own].present():
            agent, name = data.agent.names[code], data.put.names[put]
            where = (
                f"one.change = 'agent name' AND one.agent = {sql.quoted(agent)} "
                f"AND one.put = {sql.quoted(name)}"
            )
            subject = f"called {name or 'otherwise'} rather than {agent}"
            rows = own & (data.put.codes == put)
            yield scorings.pairs(subject, "must not matter", rows, where)


def _today(scorings: _Scorings) -> Iterator[Pairs]:
    """The plain scoring against the one that trained: of all actions, and type by type.

    And of each type in each half of the iterations by outcome and agent: a bias that the coach had
    then, and has not now, may cancel over these.
    """
    data, plain = scorings.data, scorings.rows("as it was")
    yield _since_stored(scorings, TODAY, plain, "")
    for code in data.task_type.present():
        name = data.task_type.names[code]
        rows = plain & (data.task_type.codes == code)
        where = f" AND one.task_type = {sql.quoted(name)}"
        yield _since_stored(scorings, f"{name}, {TODAY}", rows, where)
        halves = windows(data.iteration, 2)
        for first, last in halves if len(halves) > 1 else ():
            half = rows & (data.iteration >= first) & (data.iteration <= last)
            during = f"{where} AND one.iteration BETWEEN {first} AND {last}"
            subject = f"{name}, iterations {first} to {last}, {TODAY}"
            for stratum, inside, condition in _strata(data):
                pairs = _since_stored(scorings, subject, half & inside, during + condition)
                yield replace(pairs, stratum=stratum)


def _since_stored(scorings: _Scorings, subject: str, rows: Mask, where: str) -> Pairs:
    asked = f"one.change = 'as it was'{where}"
    return replace(
        scorings.pairs(subject, "as stored", rows, asked),
        difference=(scorings.data.score - scorings.data.stored)[rows],
        seen=True,
        against="the score that trained",
        sql=paired(asked, "other.change = 'as it was'", "one.score - one.stored"),
    )


def _told(scorings: _Scorings) -> Iterator[Pairs]:
    """What being told the outcome is worth: right rather than wrong, and the truth or nothing."""
    told = "one.change = 'told right'"
    rows = scorings.rows("told right")
    yield scorings.pairs("told right rather than wrong", "may matter", rows, told, "told wrong")
    outcomes: tuple[tuple[Change, int], ...] = (("told right", 1), ("told wrong", 0))
    for change, success in outcomes:
        true = scorings.rows(change) & (scorings.data.success == success)
        where = f"one.change = '{change}' AND one.success = {str(bool(success)).lower()}"
        subject = f"{change}, which it was, rather than nothing"
        yield scorings.pairs(subject, "may matter", true, where, "outcome hidden")


def at(scores: Floats, rows: Ints) -> Floats:
    """(n, ...) the scores of some rows; NaN for a row of -1."""
    return np.where((rows < 0).reshape(-1, *[1] * (scores.ndim - 1)), np.nan, scores[rows])


def _is(factor: Factor, name: str) -> Mask:
    if name not in factor.names:
        return np.zeros(len(factor.codes), dtype=bool)
    return factor.codes == factor.names.index(name)
