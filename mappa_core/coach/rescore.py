"""Stored actions scored again, from SQL alone: another coach, another rubric, a later repeat.

rows ─▶ what this coach has not scored yet ─▶ estimate ─▶ scores as further rows
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from mappa_core.coach.config import CoachConfig
from mappa_core.coach.forecast import Forecast, forecast
from mappa_core.coach.protocols import Coach
from mappa_core.coach.rubrics import RubricSet
from mappa_core.coach.scoring import ScorePlan, missing_scores, score_episode
from mappa_core.core.concurrency import together
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachCall, Unscored
from mappa_core.rollout.episode import duties_of
from mappa_core.rollout.teams.base import Team
from mappa_core.store.protocols import Store

EPISODES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is to be scored again."""

    actions: tuple[tuple[str, frozenset[UUID]], ...]
    """By episode id."""
    expected: Forecast

    @property
    def count(self) -> int:
        """Actions."""
        return sum(len(actions) for _, actions in self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What came of it."""

    scored: int
    unscored: int
    calls: int
    cost_usd: float


def coach_overrides(coach: str, rubric: str | None) -> list[str]:
    """`gemini:gemini-2.5-pro` and a rubric as dotted overrides.

    Raises:
        ConfigError: The coach is not written as backend or backend:model.
    """
    backend, separator, model = coach.partition(":")
    if not backend or (separator and not model):
        raise ConfigError(f"--coach {coach}: write backend:model, e.g. gemini:gemini-2.5-pro")
    chosen = [f"coach.backend={backend}", f"coach.model={model}"]
    return chosen if rubric is None else [*chosen, f"coach.rubric={rubric}"]


def plan_of(coach: Coach, config: CoachConfig, team: Team) -> ScorePlan:
    """Scores beside those that trained."""
    return ScorePlan(
        coach=coach,
        repeats=config.repeats,
        visibility=config.visibility,
        duties=duties_of(team),
        trains=False,
    )


def wanted(
    store: Store,
    run: Run,
    plan: ScorePlan,
    rubrics: RubricSet | None,
    config: CoachConfig,
    limit: int | None,
) -> Wanted:
    """The training actions of `run` that lack a score of the plan, at most `limit` of them."""
    chosen: list[tuple[str, frozenset[UUID]]] = []
    expected, left = Forecast(), limit if limit is not None else 2**63
    for summary in store.episode_summaries(run.id):
        if summary.phase != "train" or left <= 0:
            continue
        episode = store.episode(str(summary.id))
        missing = missing_scores(episode, plan, store.scores(episode.id))
        actions = frozenset(list(dict.fromkeys(action for action, _ in missing))[:left])
        left -= len(actions)
        if actions:
            chosen.append((str(summary.id), actions))
        if rubrics is not None:
            cases = [case for action, case in missing if action in actions]
            expected += forecast(cases, rubrics, config)
    return Wanted(actions=tuple(chosen), expected=expected)


async def rescore(
    store: Store, plan: ScorePlan, asked: Wanted, progress: Callable[[int], None]
) -> Rescored:
    """Score what is wanted; each score is stored as it arrives, so it can be stopped and resumed.

    Args:
        store: Where the actions are and the scores go.
        plan: Who scores.
        asked: What.
        progress: Told how many actions of an episode are done.
    """
    slots = asyncio.Semaphore(EPISODES_AT_ONCE)

    async def one(episode_id: str, actions: frozenset[UUID]) -> list[CoachCall]:
        async with slots:
            episode = await asyncio.to_thread(store.episode, episode_id)
            known = {entry.id for entry in await asyncio.to_thread(store.scores, episode.id)}
            entries = await score_episode(episode, plan=replace(plan, actions=actions), store=store)
        progress(len(actions))
        return [entry.score for entry in entries if entry.id not in known]

    batches = await together(one(*episode) for episode in asked.actions)
    fresh = [score for batch in batches for score in batch]
    unscored = sum(isinstance(score, Unscored) for score in fresh)
    return Rescored(
        scored=len(fresh) - unscored,
        unscored=unscored,
        calls=sum(score.attempts for score in fresh),
        cost_usd=sum(score.cost_usd or 0.0 for score in fresh),
    )
