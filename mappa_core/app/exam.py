"""The exam of a run's coach: its stored mark, or one made before the run begins.

auto      a stored mark is heeded; a missing one is made where asking costs nothing
require   a missing one is made, whatever it costs
advise    the same, and training goes on whatever comes out
never     no exam
"""

import asyncio
from collections.abc import Callable

from mappa_core.app.checks import coached_team
from mappa_core.app.config import TrainConfig
from mappa_core.app.databases import opened_audit
from mappa_core.audit.exam.cases import KINDS, RIGHT_OVER_WRONG
from mappa_core.audit.exam.sitting import Paper, set_paper, sit
from mappa_core.audit.records import Exam, ExamLine
from mappa_core.audit.statistics.ordering import CHANCE
from mappa_core.audit.store import AuditStore
from mappa_core.coach.opening import needed_key
from mappa_core.coach.protocols import Coach
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team


async def check_exam(
    coach: Coach, team: Team, config: TrainConfig, audit: AuditStore, tell: Callable[[str], None]
) -> Exam | None:
    """Refuse to train under a coach that cannot tell good work from bad; returns its mark.

    None where there is no mark: none is wanted, or the coach costs money and was not to be asked.

    Args:
        coach: The one that is to teach.
        team: Whose actions it is to score.
        config: Of the run.
        audit: Where marks are kept.
        tell: Is told what is done and what came out.

    Raises:
        ConfigError: The coach failed, and `coach.exam` does not say to go on.
        CoachError: The coach cannot work at all.
    """
    if config.coach.exam == "never":
        return None
    paper = set_paper(team, coached_team(team), config.coach)
    exam = await asyncio.to_thread(audit.exam, paper.id)
    if exam is None and not asks_unasked(config):
        tell(unexamined(config))
        return None
    if exam is None:
        tell(f"the coach sits its exam: {len(paper.cases)} cases")
        exam = await examined(coach, paper, config, audit)
    tell(said(exam))
    if not exam.passed and config.coach.exam != "advise":
        raise ConfigError(refusal(exam))
    return exam


async def examined(coach: Coach, paper: Paper, config: TrainConfig, audit: AuditStore) -> Exam:
    """Let a coach sit its exam, and store the mark unless too much of it is missing.

    Raises:
        CoachError: The coach cannot work at all.
    """
    exam = await sit(coach, paper)
    if exam.unscored <= config.coach.unscored_limit * exam.asked:
        await asyncio.to_thread(audit.add, [exam])
    return exam


def missing_paper(config: TrainConfig, settings: Settings) -> Paper | None:
    """The exam that the coach of a run has not sat yet; None where it has.

    Raises:
        ConfigError: The team, or a rubric set, is missing.
    """
    team = load_team(config.team, config.prompts, config.rollout)
    paper = set_paper(team, coached_team(team), config.coach)
    with opened_audit(settings) as audit:
        return paper if audit.exam(paper.id) is None else None


def asks_unasked(config: TrainConfig) -> bool:
    """Whether an exam is sat without asking a person: it is asked for, or costs nothing."""
    free = needed_key(config.coach) is None
    return config.coach.exam in ("require", "advise") or free


def said(exam: Exam) -> str:
    """A mark in one line, with the kinds of work that the coach cannot tell apart."""
    kinds = [line for line in exam.lines if line.of in KINDS and line.share <= CHANCE]
    weak = ", ".join(f"{line.of} ({line.share:.0%})" for line in kinds)
    unsure = [line for line in exam.lines if _decides(line) and line.low <= CHANCE < line.share]
    return (
        f"exam: the {_mark(exam)}: {'passed' if exam.passed else 'failed'}"
        + (f"; no better than chance at {weak}" if weak else "")
        + "".join(f"; {line.of} {line.share:.0%}, which chance may give too" for line in unsure)
    )


def _decides(line: ExamLine) -> bool:
    return line.of == RIGHT_OVER_WRONG


def refusal(exam: Exam) -> str:
    """Why a coach may not teach, and what to do."""
    return (
        f"{said(exam)}: it cannot tell good work from bad; name another coach, or train "
        "all the same with --yes (coach.exam=advise)"
    )


def _mark(exam: Exam) -> str:
    unscored = f", {exam.unscored} of {exam.asked} cases unscored" if exam.unscored else ""
    return (
        f"coach {exam.coach} {exam.model} put {exam.share:.0%} of {exam.pairs} pairs of work in "
        f"their known order ({exam.low:.0%} to {exam.high:.0%}, chance is 50 %{unscored})"
    )


def unexamined(config: TrainConfig) -> str:
    """Why a coach has no mark, and how it gets one."""
    return (
        f"the coach {config.coach.backend} {config.coach.model} has sat no exam, because asking "
        "it costs: `mappa audit --before`, or coach.exam=require"
    )
