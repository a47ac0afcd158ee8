"""Auditing one stored run, and asking what another coach would have done; no Prefect needed."""

from dataclasses import dataclass
from uuid import UUID

import numpy as np

from mappa_core.audit.findings import KINDS, Audit, Material, audit
from mappa_core.audit.frame import Floats
from mappa_core.audit.opinions import Opinions
from mappa_core.audit.records import Correction
from mappa_core.audit.statistics.debias import correction
from mappa_core.audit.statistics.selftest import Rate, false_alarms_at, power_at, shape_of
from mappa_core.audit.store import AuditStore
from mappa_core.audit.time_machine import OtherUpdate, other_updates
from mappa_core.audit.watch.history import history
from mappa_core.core.errors import NotFound

DEFAULT_SIMULATIONS = 60
"""Simulated runs behind each rate beside a verdict: some 2 s."""
SMALLEST_RATES = 20
"""Actions below which simulating a run of that shape says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """An audit with what it looked at and how often such an audit is wrong."""

    material: Material
    result: Audit
    rates: tuple[Rate, ...]


def audit_stored(
    store: AuditStore, name: str, margin: float, *, record: bool, simulations: int
) -> Audited:
    """Audit one run from the views of its store.

    Args:
        store: Where it is.
        name: Name, id or a prefix of either.
        margin: Biases below this many points do not matter.
        record: Whether to write the findings down.
        simulations: Simulated runs behind each rate; 0 for none.

    Raises:
        NotFound: No such run, or it has no scored training actions.
    """
    run = store.run(name)
    frame = store.frame(run.id)
    if not len(frame):
        raise NotFound(f"run {run.name} has no scored training actions yet: nothing to audit")
    material = Material(
        run=run,
        frame=frame,
        opinions=store.opinions(run.id),
        labelled=store.labelled(run.id),
        anchors=history(store.anchors(run.id), store.anchor_scores(run.id)),
        margin=margin,
        alerts=store.findings(run.id, "alert"),
    )
    result = audit(material)
    if record:
        own = [finding for finding in result.findings if finding.kind in KINDS]
        store.save_findings(run.id, KINDS, own)
    return Audited(material=material, result=result, rates=_rates(material, simulations))


def debias(store: AuditStore, audited: Audited) -> Correction:
    """Store and return the correction that an audit supports."""
    run, frame = audited.material.run, audited.material.frame
    coach, rubric_sha256 = store.trainer(run.id)
    made = correction(
        audited.result.effects,
        run_id=run.id,
        iteration=int(frame.iteration.max()),
        coach=coach,
        rubric_sha256=rubric_sha256,
    )
    store.add_correction(made)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """Which of the coaches that scored a run is meant."""

    name: str
    """Or its beginning: coach, model, version."""
    rubric: str | None = None

    def codes(self, opinions: Opinions) -> list[int]:
        """The second scorers this could be."""
        ending = "" if self.rubric is None else f", rubric {self.rubric}"
        return [
            code
            for code in opinions.scorer.present()
            if opinions.scorer.names[code].startswith(self.name)
            and opinions.scorer.names[code].endswith(ending)
            and code != opinions.trainer
        ]

    def missing(self, store: AuditStore, run: str) -> bool:
        """Whether it has not scored any action of the run.

        Raises:
            NotFound: No such run.
        """
        return not self.codes(store.opinions(store.run(run).id))


def against(store: AuditStore, name: str, coach: Scorer) -> tuple[str, tuple[OtherUpdate, ...]]:
    """Each update as the second scores of another coach would have made it.

    Args:
        store: Where the run is.
        name: The run.
        coach: Who.

    Returns:
        The scorer's full name, and the updates.

    Raises:
        NotFound: No such run, or no or several such coaches scored its actions.
    """
    run = store.run(name)
    rows, frame = store.iteration_frame(run.id)
    opinions = store.opinions(run.id)
    scorer = _scorer(opinions, coach)
    other = _in_rows(opinions, scorer, rows)
    updates = tuple(other_updates(frame, other, by_problem=run.by_problem))
    return opinions.scorer.names[scorer], updates


def _scorer(opinions: Opinions, coach: Scorer) -> int:
    codes = coach.codes(opinions)
    if len(codes) != 1:
        known = "; ".join(
            opinions.scorer.names[code]
            for code in opinions.scorer.present()
            if code != opinions.trainer
        )
        raise NotFound(
            f"{len(codes)} second coaches begin with {coach.name}: there is {known or 'none'}; "
            "name one in full, or score the run again with `mappa rescore`"
        )
    return codes[0]


def _in_rows(opinions: Opinions, scorer: int, rows: tuple[UUID, ...]) -> Floats:
    means = opinions.means(scorer)
    place = {name: index for index, name in enumerate(opinions.action.names)}
    found = [place.get(str(row)) for row in rows]
    return np.array([np.nan if index is None else means[index] for index in found])


def _rates(material: Material, simulations: int) -> tuple[Rate, ...]:
    frame = material.frame.judged()
    enough = len(frame) >= SMALLEST_RATES and len(frame.task_type.present()) > 1
    if not simulations or not enough:
        return ()
    world = shape_of(frame)
    return (
        power_at(world, simulations, material.margin),
        false_alarms_at(world, simulations, material.margin),
    )
