"""What a person should hear about while a run trains, after every iteration.

    drift        coach, rubric or policy, by an anytime-valid test over the whole run
    health       an agent's scores of this iteration that cannot teach, or that could not be read
    divergence   scores rise for equal outcomes where success falls at equal scores, the same way
    unscored     what is missing could bias a task type

Drift and divergence have a stated error rate (`drift`, `calibration`). The others are thresholds on
what is there, and their default values are meant to be rare in a healthy run.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mappa_core.audit import drift_sql, sql
from mappa_core.audit.calibration_sql import calibration
from mappa_core.audit.config import AuditConfig, StopOn
from mappa_core.audit.frame import Frame
from mappa_core.audit.records import Figure
from mappa_core.audit.statistics.calibration import ALPHA_DIVERGENCE
from mappa_core.audit.statistics.health import Health, health, missing
from mappa_core.audit.watch.drifting import DriftState
from mappa_core.audit.watch.history import RunningSums

FEWEST_SCORES = 8
"""Below this, how scores are spread says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One thing that is not as it should be."""

    kind: str
    """`drift`, `health`, `divergence` or `unscored`; events are called `mappa.audit.<kind>`."""
    stop: StopOn
    """What `audit.stop_on` calls it."""
    subject: str
    what: str
    """In one line, for a person."""
    iteration: int
    estimate: float
    unit: str
    limit: float
    """What it crossed."""
    actions: int
    sql: str
    """Gives the figure, or the rows it was worked out from."""
    since: int | None = None
    """The iteration a drift set in."""

    def figure(self) -> Figure:
        """The alert as it is written down."""
        return Figure(
            kind="alert",
            subject=f"{self.kind}: {self.subject}",
            verdict=self.stop,
            estimate=self.estimate,
            unit=self.unit,
            margin=self.limit,
            actions=self.actions,
            iteration=self.iteration,
            sql=self.sql,
            detail={"what": self.what, "since": self.since},
        )


def alerts(
    latest: Frame, iteration: int, sums: RunningSums, drift: DriftState, config: AuditConfig
) -> Iterator[Alert]:
    """Everything to be said after one iteration.

    Args:
        latest: The actions of that iteration.
        iteration: Its number.
        sums: Of the run up to it.
        drift: The drift test's state.
        config: The limits.
    """
    yield from _drift(drift, iteration, sums)
    for code in latest.agent.present():
        rows = latest.take(latest.agent.codes == code)
        described = health(rows)
        if described is not None and described.actions >= FEWEST_SCORES:
            yield from _health(latest.agent.names[code], described, iteration, config)
    yield from _divergence(sums, iteration)
    yield from _unscored(latest, iteration, config)


def _drift(drift: DriftState, iteration: int, sums: RunningSums) -> Iterator[Alert]:
    if drift.cause == "none":
        return
    wealth = drift.stream if drift.by_stream else drift.anchors.together
    yield Alert(
        kind="drift",
        stop=drift.cause,
        subject=drift.cause,
        what=drift.says,
        iteration=iteration,
        estimate=float(wealth.e_values.max()),
        unit="largest e-value",
        limit=wealth.threshold,
        actions=sums.stream.actions,
        sql=drift_sql.STREAM if drift.by_stream else drift_sql.ANCHORS,
        since=drift.since,
    )


def _health(agent: str, found: Health, iteration: int, config: AuditConfig) -> Iterator[Alert]:
    for name, column, value, limit, says in _checks(found, config):
        if value > limit:
            where = f"agent = {sql.quoted(agent)} AND iteration = {iteration}"
            yield Alert(
                kind="health",
                stop="health",
                subject=f"{agent}, {name}",
                what=f"{agent}: {says} (limit {abs(limit):g})",
                iteration=iteration,
                estimate=abs(value),
                unit=name,
                limit=abs(limit),
                actions=found.actions,
                sql=sql.health(where, estimate=column),
            )


def _checks(found: Health, config: AuditConfig) -> Iterator[tuple[str, str, float, float, str]]:
    """Yield what is checked: its name, its column in the query, its value, the limit, in words."""
    limit, mode = config.most_at_mode, f"{found.at_mode:.0%} of its scores are {found.mode:g}"
    yield "share at the mode", "at_mode", found.at_mode, limit, mode
    limit, ceiling = config.most_at_ceiling, f"{found.at_ceiling:.0%} of its scores are 10"
    yield "share at the ceiling", "at_ceiling", found.at_ceiling, limit, ceiling
    limit, unread = config.most_unparsed, f"{found.unparsed:.0%} of its replies are unreadable"
    yield "share unparsed", "unparsed", found.unparsed, limit, unread
    # Turned round: entropy is to be high.
    bits = f"its scores have {found.entropy_bits:.2f} bits of entropy"
    yield "bits of entropy", "entropy_bits", -found.entropy_bits, -config.least_entropy_bits, bits


def _divergence(sums: RunningSums, iteration: int) -> Iterator[Alert]:
    for found in sums.divergences():
        if found.bets.alarmed:
            yield Alert(
                kind="divergence",
                stop="divergence",
                subject=f"{found.agent}, {found.task_type}",
                what=f"{found.agent}'s scores on {found.task_type} rise where success does not, "
                f"since iteration {found.since}: {found.score.value:+.1f} points at equal outcome "
                f"and {100 * found.estimate.value:+.0f} % success at equal score over the run "
                f"(false in at most {ALPHA_DIVERGENCE:.0%} of runs)",
                iteration=iteration,
                estimate=float(found.bets.e_values.max()),
                unit="largest e-value",
                limit=found.bets.threshold,
                actions=found.actions,
                sql=calibration(found.agent, found.task_type),
                since=found.since,
            )


def _unscored(latest: Frame, iteration: int, config: AuditConfig) -> Iterator[Alert]:
    """The type with the most missing; the bounds of the others speak of the same gaps."""
    found = [(missing(latest, code), code) for code in latest.task_type.present()]
    bounds = [(one, code) for one, code in found if one is not None]
    worst, code = max(bounds, key=lambda each: each[0].share, default=(None, 0))
    if worst is not None and worst.possible_bias > config.unscored_points:
        name = latest.task_type.names[code]
        yield Alert(
            kind="unscored",
            stop="unscored",
            subject=name,
            what=f"{worst.share:.0%} of {name} is unscored, which could hide a bias of "
            f"{worst.possible_bias:.1f} points",
            iteration=iteration,
            estimate=worst.possible_bias,
            unit="points of possible bias",
            limit=config.unscored_points,
            actions=int((latest.task_type.codes == code).sum()),
            sql=sql.unscored(name, f"iteration = {iteration}", estimate="possible_bias"),
        )
