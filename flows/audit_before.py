"""Probing a coach before it trains anybody: null policies and paired probes on real problems."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from mappa_core.adapters.problems import problem_source
from mappa_core.auditing.audit import overall
from mappa_core.auditing.noise import Noise, noise
from mappa_core.auditing.probes import (
    NullScores,
    Probed,
    changes,
    null_actions,
    null_case,
    null_scores,
    probed,
)
from mappa_core.auditing.verdicts import Verdict
from mappa_core.bootstrap import opened_coach
from mappa_core.config import TrainConfig
from mappa_core.domain.errors import ConfigError
from mappa_core.domain.records import CoachCase, CoachScore, Problem
from mappa_core.ports import Coach
from mappa_core.settings import Settings
from mappa_core.teams import load_team

PROBLEMS_PER_TYPE = 6
REPEATS = 3
Scores = dict[str, dict[str, list[float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What a coach made of questions that should not matter to it."""

    nulls: Mapping[str, tuple[NullScores, ...]]
    """By agent."""
    probes: tuple[Probed, ...]
    noise: Noise | None
    asked: int
    unscored: int

    @property
    def verdict(self) -> Verdict:
        """Of the null policies: what deserves the same everywhere must be paid the same."""
        return overall([null.judged.verdict for found in self.nulls.values() for null in found])

    def as_json(self) -> dict[str, object]:
        """For scripts."""
        return {
            "verdict": self.verdict,
            "asked": self.asked,
            "unscored": self.unscored,
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
                    "verdict": probe.judged.verdict,
                }
                for probe in self.probes
            ],
            "within_deviation": None if self.noise is None else self.noise.within_deviation,
        }

    def tables(self) -> list[Table]:
        """For people."""
        nulls = Table(
            "agent",
            "policy",
            "mean score by task type",
            "spread",
            "verdict",
            title="What doing nothing earns",
        )
        for agent, found in self.nulls.items():
            for null in found:
                means = ", ".join(f"{name} {mean:.1f}" for name, mean in null.means.items())
                nulls.add_row(agent, null.policy, means, f"{null.spread:.2f}", null.judged.verdict)
        probes = Table(
            "feature",
            "points, 95 % interval",
            "pairs",
            "verdict",
            title="The same work, one thing changed",
        )
        for probe in self.probes:
            low, high = probe.judged.estimate.interval()
            points = f"{probe.judged.estimate.value:+.2f} ({low:+.2f} to {high:+.2f})"
            probes.add_row(probe.feature, points, str(probe.pairs), probe.judged.verdict)
        mood = Table("within-action deviation", "repeats recommended", title="Noise floor")
        if self.noise is not None:
            mood.add_row(f"{self.noise.within_deviation:.2f} points", str(self.noise.repeats))
        return [nulls, probes, mood]


async def examine_coach(config: TrainConfig, margin: float, coach: Coach | None = None) -> Examined:
    """Ask the coach of a configuration about null policies and changed cases.

    Args:
        config: The run to be.
        margin: In points.
        coach: Instead of the configuration's.

    Raises:
        ConfigError: The problems are of fewer than two task types.
        CoachError: The coach cannot work at all.
    """
    if coach is None:
        async with opened_coach(config, Settings()) as opened:
            return await examine_coach(config, margin, opened)
    asked = Asker(coach)
    agents = [agent.name for agent in load_team(config.team, config.prompts).agents]
    by_type = _by_type(problem_source(config.problems).train())
    nulls = {agent: null_scores(await _nulls(asked, agent, by_type), margin) for agent in agents}
    cases = [
        null_case(problem.statement, agent, policy, text)
        for agent in agents
        for policy, text in null_actions().items()
        for problem in [group[0] for group in by_type.values()]
    ]
    pairs = await _pairs(asked, cases)
    repeats = await _repeats(asked, cases)
    return Examined(
        nulls=nulls,
        probes=probed(pairs, margin),
        noise=noise(repeats),
        asked=asked.asked,
        unscored=asked.unscored,
    )


class Asker:
    """Asks a coach and counts; an unscored answer is NaN."""

    def __init__(self, coach: Coach) -> None:
        self._coach = coach
        self.asked = 0
        self.unscored = 0

    async def __call__(self, case: CoachCase) -> float:
        """The score of one case in [0, 10], or NaN."""
        score = await self._coach.score(case)
        self.asked += 1
        if isinstance(score, CoachScore):
            return score.value
        self.unscored += 1
        return float("nan")


def _by_type(problems: Sequence[Problem]) -> dict[str, list[Problem]]:
    by_type = defaultdict[str, list[Problem]](list)
    for problem in problems:
        if len(by_type[problem.task_type]) < PROBLEMS_PER_TYPE:
            by_type[problem.task_type].append(problem)
    if len(by_type) < 2:
        raise ConfigError("all problems are of one task type: there is nothing to prefer")
    return dict(by_type)


async def _nulls(asked: Asker, agent: str, by_type: Mapping[str, Sequence[Problem]]) -> Scores:
    scores: Scores = {}
    for policy, text in null_actions().items():
        scores[policy] = {}
        for task_type, problems in by_type.items():
            given = await asyncio.gather(
                *(asked(null_case(one.statement, agent, policy, text)) for one in problems)
            )
            scores[policy][task_type] = [score for score in given if not np.isnan(score)]
    return scores


async def _pairs(asked: Asker, cases: Sequence[CoachCase]) -> dict[str, list[tuple[float, float]]]:
    pairs = defaultdict[str, list[tuple[float, float]]](list)
    for case in cases:
        plain = await asked(case)
        for feature, change in changes().items():
            changed = change(case)
            if changed is not None:
                pair = plain, await asked(changed)
                if not np.isnan(pair).any():
                    pairs[feature].append(pair)
    return dict(pairs)


async def _repeats(asked: Asker, cases: Sequence[CoachCase]) -> np.ndarray:
    rows = [await asyncio.gather(*(asked(case) for _ in range(REPEATS))) for case in cases]
    return np.array(rows)
