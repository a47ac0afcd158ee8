"""Probing a coach before it trains anybody: rubric, null policies, paired probes, noise floor.

configuration ─▶ questions ─▶ forecast ─▶ coach ─▶ Examined, with one verdict
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from mappa_core.app.config import TrainConfig
from mappa_core.audit.findings import overall
from mappa_core.audit.frame import Floats
from mappa_core.audit.probes.cases import Null, Worked, nulls, worked
from mappa_core.audit.probes.features import (
    Feature,
    NullScores,
    Probed,
    features,
    null_scores,
    probed,
)
from mappa_core.audit.statistics.noise import Noise, noise
from mappa_core.audit.statistics.verdicts import Verdict
from mappa_core.coach.forecast import Forecast, forecast
from mappa_core.coach.opening import ProbedCoach
from mappa_core.coach.protocols import Coach
from mappa_core.coach.rubrics.arithmetic import NullCap, null_caps
from mappa_core.coach.rubrics.lint import LintFinding, lint
from mappa_core.core.records.scores import CoachCase, CoachScore

REPEATS = 3
REPEATED = 12
"""Worked actions that are scored several times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """Everything a coach is going to be asked."""

    nulls: tuple[Null, ...]
    worked: tuple[Worked, ...]

    def expected(self, coach: ProbedCoach, config: TrainConfig) -> Forecast:
        """What asking takes; nothing for a coach without a rubric."""
        if coach.rubrics is None:
            return Forecast()
        cases = [null.case for null in self.nulls]
        for item in self.worked:
            cases += [case for _, pair in _pairs(item, coach) for case in pair]
        cases += [item.case for item in self.worked[:REPEATED]] * REPEATS
        return forecast(cases, coach.rubrics, config.coach)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a coach made of questions that should not matter to it."""

    rubric: tuple[LintFinding, ...]
    caps: tuple[NullCap, ...]
    """What the rubric's arithmetic pays for nothing; none where it has no metric."""
    nulls: Mapping[str, tuple[NullScores, ...]]
    """By agent."""
    probes: tuple[Probed, ...]
    noise: Noise | None
    margin: float
    asked: int
    unscored: int

    @property
    def verdict(self) -> Verdict:
        """Biased where doing nothing, or what must not matter, pays differently.

        A rubric that treats task types differently is a bias before anybody is asked.
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
                {
                    "agent": agent,
                    "policy": null.policy,
                    "means": dict(null.means),
                    "spread": null.spread,
                    "verdict": null.judged.verdict,
                }
                for agent, found in self.nulls.items()
                for null in found
            ],
            "probes": [
                {
                    "feature": probe.feature,
                    "points": probe.judged.estimate.value,
                    "interval": probe.judged.estimate.interval(),
                    "pairs": probe.pairs,
                    "may_matter": probe.may_matter,
                    "verdict": probe.judged.verdict,
                }
                for probe in self.probes
            ],
            "noise": None if self.noise is None else asdict(self.noise),
        }


def questions(config: TrainConfig) -> Questions:
    """What the coach of a configuration is going to be asked.

    Raises:
        ConfigError: The problems are of fewer than two task types.
    """
    return Questions(nulls=nulls(config), worked=worked(config))


async def examine_coach(asking: Questions, coach: ProbedCoach, margin: float) -> Examined:
    """Ask a coach about null policies and changed cases.

    Args:
        asking: What.
        coach: Whom.
        margin: In points.

    Raises:
        CoachError: The coach cannot work at all.
    """
    asked = _Asked()
    by_agent = await _nulls(asked, coach.coach, asking.nulls)
    pairs = await _answers(asked, coach, asking.worked)
    repeats = await _repeats(asked, coach.coach, asking.worked[:REPEATED])
    return Examined(
        rubric=() if coach.rubrics is None else lint(coach.rubrics),
        caps=() if coach.rubrics is None else null_caps(coach.rubrics),
        nulls={agent: null_scores(scores, margin) for agent, scores in by_agent.items()},
        probes=probed(pairs, margin),
        noise=noise(repeats),
        margin=margin,
        asked=asked.asked,
        unscored=asked.unscored,
    )


@dataclass(slots=True)
class _Asked:
    """Asks coaches and counts; an unscored answer is NaN."""

    asked: int = 0
    unscored: int = 0

    async def __call__(self, coach: Coach, case: CoachCase) -> float:
        score = await coach.score(case)
        self.asked += 1
        if isinstance(score, CoachScore):
            return score.value
        self.unscored += 1
        return float("nan")


def _pairs(item: Worked, coach: ProbedCoach) -> list[tuple[Feature, tuple[CoachCase, CoachCase]]]:
    usable = [each for each in features() if coach.turned_round or not each.turned_round]
    pairs = [(feature, feature.pair(item.case, item.outcome)) for feature in usable]
    return [(feature, pair) for feature, pair in pairs if pair is not None]


async def _nulls(
    asked: _Asked, coach: Coach, items: Sequence[Null]
) -> Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]:
    """Scores by agent, policy and task type."""
    given = await asyncio.gather(*(asked(coach, item.case) for item in items))
    scores = defaultdict[str, dict[str, dict[str, list[float]]]](dict)
    for item, score in zip(items, given, strict=True):
        if not np.isnan(score):
            by_type = scores[item.agent].setdefault(item.policy, {})
            by_type.setdefault(item.task_type, []).append(score)
    return scores


async def _answers(
    asked: _Asked, coach: ProbedCoach, items: Sequence[Worked]
) -> Mapping[str, Sequence[tuple[float, float]]]:
    """Scores without and with each feature; equal cases are asked about once."""
    wanted = [(feature, pair) for item in items for feature, pair in _pairs(item, coach)]
    turned = coach.turned_round or coach.coach
    calls = {
        (key, case): asker
        for feature, (plain, changed) in wanted
        for key, asker, case in (
            (False, coach.coach, plain),
            (feature.turned_round, turned if feature.turned_round else coach.coach, changed),
        )
    }
    given = await asyncio.gather(*(asked(asker, case) for (_, case), asker in calls.items()))
    scores = dict(zip(calls, given, strict=True))
    pairs = defaultdict[str, list[tuple[float, float]]](list)
    for feature, (plain, changed) in wanted:
        pair = scores[False, plain], scores[feature.turned_round, changed]
        if not np.isnan(pair).any():
            pairs[feature.name].append(pair)
    return pairs


async def _repeats(asked: _Asked, coach: Coach, items: Sequence[Worked]) -> Floats:
    """(A, K); every repeat is a sample of its own, or a coach would answer from memory."""
    rows = [
        await asyncio.gather(
            *(asked(coach, replace(item.case, sample=1 + k)) for k in range(REPEATS))
        )
        for item in items
    ]
    return np.array(rows)
