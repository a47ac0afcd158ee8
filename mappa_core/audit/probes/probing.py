"""Probing a coach before it trains: rubric, null policies, paired probes, noise floor.

questions ─▶ forecast ─▶ coach ─▶ ProbeResult, with one verdict
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from mappa_core.audit.frame import Factor, Floats
from mappa_core.audit.probes.cases import NullAction, Questions, WorkedAction
from mappa_core.audit.probes.features import Feature, Pair, features
from mappa_core.audit.probes.scores import (
    NullScores,
    ProbedFeature,
    ScoredPair,
    null_scores,
    probed,
)
from mappa_core.audit.statistics.noise import Noise, noise
from mappa_core.audit.statistics.verdicts import Verdict, overall
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.forecast import Forecast, forecast
from mappa_core.coach.opening import ProbeCoaches
from mappa_core.coach.protocols import Coach
from mappa_core.coach.rubrics.arithmetic import NullCap, null_caps
from mappa_core.coach.rubrics.lint import LintFinding, lint
from mappa_core.core.records.scores import CoachCase, CoachScore

REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """What a coach made of questions that should not matter to it."""

    rubric: tuple[LintFinding, ...]
    caps: tuple[NullCap, ...]
    """What the rubric's arithmetic pays for nothing; none where it has no metric."""
    nulls: Mapping[str, tuple[NullScores, ...]]
    """By agent."""
    probes: tuple[ProbedFeature, ...]
    noise: Noise | None
    margin: float
    asked: int
    unscored: int

    @property
    def verdict(self) -> Verdict:
        """Biased where doing nothing, or what must not matter, pays differently.

        A rubric that treats task types differently is a bias before the coach is asked.
        """
        if self.rubric or any(cap.spread > self.margin for cap in self.caps):
            return "biased"
        judged = [null.judged for found in self.nulls.values() for null in found]
        judged += [probe.judged for probe in self.probes if not probe.may_matter]
        return overall([each.verdict for each in judged])

    def as_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "verdict": self.verdict,
            "margin": self.margin,
            "asked": self.asked,
            "unscored": self.unscored,
            "rubric": [asdict(finding) for finding in self.rubric],
            "null_caps": [
                {**asdict(cap), "points": dict(cap.points), "spread": cap.spread}
                for cap in self.caps
            ],
            "null_policies": [
                {"agent": agent, **null.as_json()}
                for agent, found in self.nulls.items()
                for null in found
            ],
            "probes": [probe.as_json() for probe in self.probes],
            "noise": None if self.noise is None else asdict(self.noise),
        }


def expected(questions: Questions, coach: ProbeCoaches, config: CoachModelConfig) -> Forecast:
    """What asking takes; nothing for a coach without a rubric."""
    if coach.rubrics is None:
        return Forecast()
    cases = [null.case for null in questions.nulls]
    for item in questions.worked:
        cases += [case for _, pair in _pairs(item, coach) for case in pair]
    cases += [item.case for item in questions.repeated] * REPEATS
    return forecast(cases, coach.rubrics, config)


async def probe_coach(questions: Questions, coach: ProbeCoaches, margin: float) -> ProbeResult:
    """Ask a coach about null policies and changed cases.

    Args:
        questions: What is asked about.
        coach: Which is asked.
        margin: In points.

    Raises:
        CoachError: The coach cannot work at all.
    """
    calls = _Calls()
    by_agent = await _null_scores(calls, coach.coach, questions.nulls)
    pairs = await _pair_scores(calls, coach, questions.worked)
    repeats = await _repeats(calls, coach.coach, questions.repeated)
    return ProbeResult(
        rubric=() if coach.rubrics is None else lint(coach.rubrics),
        caps=() if coach.rubrics is None else null_caps(coach.rubrics),
        nulls={agent: null_scores(scores, margin) for agent, scores in by_agent.items()},
        probes=probed(pairs, margin),
        noise=noise(repeats, Factor.of([item.case.statement for item in questions.repeated]).codes),
        margin=margin,
        asked=calls.made,
        unscored=calls.unscored,
    )


@dataclass(slots=True)
class _Calls:
    """Counts the calls of coaches; an unscored answer is NaN."""

    made: int = 0
    unscored: int = 0

    async def score(self, coach: Coach, case: CoachCase) -> float:
        score = await coach.score(case)
        self.made += 1
        if isinstance(score, CoachScore):
            return score.value
        self.unscored += 1
        return float("nan")


def _pairs(item: WorkedAction, coach: ProbeCoaches) -> list[tuple[Feature, Pair]]:
    usable = [each for each in features() if coach.reversed or not each.turned_round]
    pairs = [(feature, feature.pair(item.case, item.outcome)) for feature in usable]
    return [(feature, pair) for feature, pair in pairs if pair is not None]


async def _null_scores(
    calls: _Calls, coach: Coach, items: Sequence[NullAction]
) -> Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]:
    """Scores by agent, policy and task type."""
    given = await asyncio.gather(*(calls.score(coach, item.case) for item in items))
    scores = defaultdict[str, dict[str, dict[str, list[float]]]](dict)
    for item, score in zip(items, given, strict=True):
        if not np.isnan(score):
            by_type = scores[item.agent].setdefault(item.policy, {})
            by_type.setdefault(item.task_type, []).append(score)
    return scores


async def _pair_scores(
    calls: _Calls, coach: ProbeCoaches, items: Sequence[WorkedAction]
) -> Mapping[str, Sequence[ScoredPair]]:
    """Scores without and with each feature; equal cases are asked about once."""
    wanted = [(feature, pair) for item in items for feature, pair in _pairs(item, coach)]
    # A case goes to the coach as it is, and, as the second of some pairs, to the one turned round.
    keys = dict.fromkeys(
        key
        for feature, (plain, changed) in wanted
        for key in ((False, plain), (feature.turned_round, changed))
    )
    coaches = {False: coach.coach, True: coach.reversed or coach.coach}
    given = await asyncio.gather(*(calls.score(coaches[turned], case) for turned, case in keys))
    scores = dict(zip(keys, given, strict=True))
    pairs = defaultdict[str, list[ScoredPair]](list)
    for feature, (plain, changed) in wanted:
        both = scores[False, plain], scores[feature.turned_round, changed]
        if not np.isnan(both).any():
            pairs[feature.name].append(ScoredPair(plain.statement, *both))
    return pairs


async def _repeats(calls: _Calls, coach: Coach, items: Sequence[WorkedAction]) -> Floats:
    """(A, K); every repeat is a sample of its own, or a coach would answer from memory."""
    rows = [
        await asyncio.gather(
            *(calls.score(coach, replace(item.case, sample=1 + k)) for k in range(REPEATS))
        )
        for item in items
    ]
    return np.array(rows)
