"""Sitting the exam: a coach scores every case once, and gets a mark with an interval.

cases ─▶ forecast ─▶ coach ─▶ share of pairs in their known order ─▶ Exam
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from mappa_core.audit.exam.cases import (
    RIGHT_OVER_WRONG,
    ExamCase,
    OrderedPair,
    distinct_cases,
    exam_pairs,
)
from mappa_core.audit.records import Exam, ExamLine, ExamScore
from mappa_core.audit.statistics.ordering import CHANCE, Ordering, ordering
from mappa_core.coach.attempts import RECORDED
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.evidence import marker_of
from mappa_core.coach.forecast import Forecast, forecast
from mappa_core.coach.opening import CoachedTeam, coach_rubrics, judged_by
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.records.scores import CoachCase, CoachScore, Unscored
from mappa_core.rollout.teams.base import Team

Scores = Mapping[CoachCase, CoachScore | Unscored]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """The exam of one coach for one team, before it is sat."""

    id: UUID
    team: str
    pairs: tuple[OrderedPair, ...]
    expected: Forecast
    """What it takes; nothing for a coach without a rubric."""

    @property
    def cases(self) -> tuple[ExamCase, ...]:
        """What the coach is asked."""
        return distinct_cases(self.pairs)


def set_paper(
    team: Team,
    coached: CoachedTeam,
    config: CoachModelConfig,
    pairs: tuple[OrderedPair, ...] | None = None,
) -> Paper:
    """Make the exam of a team's coach, from the pairs of `exam_pairs` unless there are others.

    Its id is of all that could change a score: who is asked, how it is sampled, what it is told,
    every case; and of which kind of pair decides. A coach of the same id need not sit it again.

    Raises:
        ConfigError: A rubric set or an agent's rubric is missing.
    """
    pairs = exam_pairs(team) if pairs is None else pairs
    cases = [each.case for each in distinct_cases(pairs)]
    rubrics = coach_rubrics(config, coached)
    asked = (config.backend, config.base_url, *(str(getattr(config, key)) for key in RECORDED))
    told = tuple(judged_by(config, coached).items())
    return Paper(
        id=ids.content_id("exam", RIGHT_OVER_WRONG, asked, told, tuple(map(marker_of, cases))),
        team=team.name,
        pairs=pairs,
        expected=Forecast() if rubrics is None else forecast(cases, rubrics, config),
    )


async def sit(coach: Coach, paper: Paper) -> Exam:
    """Let a coach score every case.

    Raises:
        CoachError: The coach cannot work at all.
        ValueError: The paper has no pair.
    """
    cases = paper.cases
    given = await asyncio.gather(*(coach.score(each.case) for each in cases))
    return marked(coach, paper, dict(zip((each.case for each in cases), given, strict=True)))


def marked(coach: Coach, paper: Paper, scores: Scores) -> Exam:
    """Mark what a coach gave.

    It passes where its mark is above chance, and so is what it makes of right and wrong work, if
    the paper has such pairs: the other kinds alone could make up a mark.

    Raises:
        ValueError: The paper has no pair.
    """
    mark = _ordering(paper.pairs, scores)
    lines = tuple(_lines(paper.pairs, scores))
    deciding = [mark.low, *(line.low for line in lines if line.of == RIGHT_OVER_WRONG)]
    who = coach.identity
    return Exam(
        id=paper.id,
        coach=who.coach,
        model=who.model,
        rubric_version=who.rubric_version,
        rubric_sha256=who.rubric_sha256,
        team=paper.team,
        share=mark.share,
        low=mark.low,
        high=mark.high,
        passed=min(deciding) > CHANCE,
        pairs=mark.pairs,
        problems=mark.problems,
        asked=len(scores),
        unscored=sum(isinstance(score, Unscored) for score in scores.values()),
        lines=lines,
        scores=tuple(_scored(each, scores[each.case]) for each in paper.cases),
    )


def _lines(pairs: Sequence[OrderedPair], scores: Scores) -> Iterator[ExamLine]:
    groups: dict[str, list[OrderedPair]] = {}
    for pair in pairs:
        groups.setdefault(pair.kind, []).append(pair)
    for pair in pairs:
        groups.setdefault(pair.agent, []).append(pair)
    for of, group in groups.items():
        found = _ordering(group, scores)
        yield ExamLine(of=of, share=found.share, low=found.low, high=found.high, pairs=found.pairs)


def _ordering(pairs: Sequence[OrderedPair], scores: Scores) -> Ordering:
    better, worse = (
        np.array([_value(scores[case]) for case in cases])
        for cases in ([pair.better.case for pair in pairs], [pair.worse.case for pair in pairs])
    )
    return ordering(better, worse, np.array([pair.problem for pair in pairs]))


def _value(score: CoachScore | Unscored) -> float:
    return score.value if isinstance(score, CoachScore) else float("nan")


def _scored(each: ExamCase, score: CoachScore | Unscored) -> ExamScore:
    said = score.rationale if isinstance(score, CoachScore) else f"{score.reason}: {score.detail}"
    return ExamScore(
        problem=each.problem,
        agent=each.case.agent,
        work=each.work,
        score=score.value if isinstance(score, CoachScore) else None,
        said=said,
    )
