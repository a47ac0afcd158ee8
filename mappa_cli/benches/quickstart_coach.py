"""What a language model did as the coach of a stored run: its scores, its exam, its audit.

rows of the run ─▶ scores, tokens ─┐
its exam's mark, if it sat one    ─┼─▶ ModelCoachResult
the audit's regression            ─┘
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mappa_cli.benches.report import Figure
from mappa_core.app.checks import coached_team
from mappa_core.app.config import TrainConfig
from mappa_core.audit.exam.sitting import set_paper
from mappa_core.audit.records import Exam, ExamLine, Finding
from mappa_core.audit.run_audit import audit_run
from mappa_core.audit.statistics.observational import ALARMS, Word
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.audit.store import AuditStore
from mappa_core.coach.config import RULE
from mappa_core.core.records.runs import Run
from mappa_core.rollout.teams import load_team
from mappa_core.store.store import Store

MOST_UNSCORED = 2
"""Of 100 training actions."""
COMPARED = ("task_type", "task_type_cell")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamMark:
    """What it reached in its exam."""

    share: float
    """Of all pairs, those in their known order, in [0, 1]."""
    low: float
    high: float
    """Of the 90 % interval."""
    passed: bool
    asked: int
    """Cases."""
    unscored: int
    """Cases without a score."""
    lines: tuple[ExamLine, ...]
    """By kind of pair, then by agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A comparison of two task types that the audit does not take for chance."""

    subject: str
    against: str
    of: str
    """Which work: an agent's, or of one outcome or part of the run."""
    verdict: str
    points: float
    """That the subject gets more."""
    low: float
    high: float
    """Of the 95 % interval."""
    sensitivity: float | None
    """The share that unmeasured difficulty would have to explain, in [0, 1]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionVerdict:
    """What the audit of the run's rows says, without an experiment."""

    verdict: Word
    found: tuple[Suspicion, ...]
    """Behind it, where it is biased or suspected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCoachResult:
    """What a language model did as the coach of a run."""

    model: str
    scores: int
    """Of training actions."""
    unscored: int
    """Training actions without one."""
    tokens: int
    """Prompts, cached parts included, and replies."""
    exam: ExamMark | None = None
    """None where it sat none."""
    audit: RegressionVerdict | None = None
    """None in results of before it was stored."""


def model_coach(store: Store, run: Run, config: TrainConfig) -> ModelCoachResult | None:
    """Read what the coach of a finished run did; None where rules scored."""
    if config.coach.backend == RULE:
        return None
    agents = [
        agent
        for iteration in range(1, config.rollout.iterations + 1)
        for agent in store.figures.get_iteration_figures(run.id, "train", iteration).agents
    ]
    unscored = sum(agent.unscored for agent in agents)
    audit = AuditStore(store.database)
    return ModelCoachResult(
        model=config.coach.model,
        scores=sum(agent.actions for agent in agents) - unscored,
        unscored=unscored,
        tokens=store.figures.get_coach_spending(run.id).tokens,
        exam=_mark(audit, config),
        audit=_verdict(audit, run),
    )


def _mark(audit: AuditStore, config: TrainConfig) -> ExamMark | None:
    team = load_team(config.team, config.prompts, config.rollout)
    exam = audit.exam(set_paper(team, coached_team(team), config.coach).id)
    return None if exam is None else _of_exam(exam)


def _of_exam(exam: Exam) -> ExamMark:
    return ExamMark(
        share=exam.share,
        low=exam.low,
        high=exam.high,
        passed=exam.passed,
        asked=exam.asked,
        unscored=exam.unscored,
        lines=exam.lines,
    )


def _verdict(audit: AuditStore, run: Run) -> RegressionVerdict:
    seen = audit_run(audit, str(run.id), MARGIN_POINTS, record=False, simulations=0).result
    return RegressionVerdict(
        verdict=seen.observational,
        found=tuple(
            _suspicion(each)
            for each in seen.findings
            if each.kind in COMPARED and each.verdict in ALARMS
        ),
    )


def _suspicion(found: Finding) -> Suspicion:
    assert found.estimate is not None
    assert found.low is not None
    assert found.high is not None
    sensitivity = found.detail.get("sensitivity")
    return Suspicion(
        subject=found.subject,
        against=found.against,
        of=found.stratum,
        verdict=found.verdict,
        points=found.estimate,
        low=found.low,
        high=found.high,
        sensitivity=sensitivity if isinstance(sensitivity, float) else None,
    )


def coached_speed(coach: ModelCoachResult, minutes: float) -> float:
    """Tokens a second that it read and wrote, over the whole run."""
    return coach.tokens / (60 * minutes)


def coach_figures(coach: ModelCoachResult, of: str, minutes: float) -> Iterator[Figure]:
    """List what it did; `of` says in which run."""
    share = 100 * coach.unscored / (coach.scores + coach.unscored)
    yield Figure(
        name=f"{of}: actions unscored", value=share, unit="%", aim="< 2", met=share < MOST_UNSCORED
    )
    speed = coached_speed(coach, minutes)
    yield Figure(name=f"{of}: tokens coached over the run", value=speed, unit="/s")
    if coach.exam is not None:
        mark = f"{of}: the coach's mark ({'passed' if coach.exam.passed else 'failed'})"
        yield Figure(name=mark, value=100 * coach.exam.share, unit="%")
    if coach.audit is not None:
        name = f"{of}: comparisons that are not chance (audit: {coach.audit.verdict})"
        yield Figure(name=name, value=len(coach.audit.found), unit="")
