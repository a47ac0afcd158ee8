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
from mappa_core.coach.scoring import ScorePlan, give_scores, missing_scores
from mappa_core.core import ids
from mappa_core.core.concurrency import together
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachCall, CoachIdentity, Duty, Unscored
from mappa_core.store.store import Store

EPISODES_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreJob:
    """Lists the actions to score again, and what that is expected to take."""

    actions: tuple[tuple[str, frozenset[UUID]], ...]
    """By episode id."""
    expected: Forecast

    @property
    def count(self) -> int:
        """Actions."""
        return sum(len(actions) for _, actions in self.actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RescoreResult:
    """Counts what scoring again gave and took."""

    coach: CoachIdentity
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
    # Nothing after `=` would be read as null.
    chosen = [f"coach.backend={backend}", f"coach.model={model or repr(model)}"]
    return chosen if rubric is None else [*chosen, f"coach.rubric={rubric}"]


def rescore_plan(coach: Coach, config: CoachConfig, duties: tuple[Duty, ...]) -> ScorePlan:
    """Make the plan of scores that are stored with those that trained and train nothing."""
    return ScorePlan(
        coach=coach,
        repeats=config.repeats,
        visibility=config.visibility,
        duties=duties,
        trains=False,
    )


def plan_rescoring(
    store: Store,
    run: Run,
    plan: ScorePlan,
    rubrics: RubricSet | None,
    config: CoachConfig,
    limit: int | None,
) -> RescoreJob:
    """Find the training actions of `run` that lack a score of the plan.

    With a limit, among so many that are drawn at random: the same each time, and also among more.
    """
    chosen: list[tuple[str, frozenset[UUID]]] = []
    expected, drawn = Forecast(), None if limit is None else _drawn(store, run, limit)
    plan = plan if drawn is None else replace(plan, actions=frozenset(drawn))
    asked = None if drawn is None else set(drawn.values())
    for summary in store.episodes.list_episodes(run.id):
        if summary.phase != "train" or (asked is not None and summary.id not in asked):
            continue
        episode = store.episodes.get_episode(str(summary.id))
        missing = missing_scores(episode, plan, store.scores.scores_of_episode(episode.id))
        if missing:
            chosen.append((str(summary.id), frozenset(one.action_id for one in missing)))
        if rubrics is not None:
            expected += forecast([one.case for one in missing], rubrics, config)
    return RescoreJob(actions=tuple(chosen), expected=expected)


def _drawn(store: Store, run: Run, count: int) -> dict[UUID, UUID]:
    """The episodes of `count` actions: of all in the order of a hash, the first."""
    episodes = store.episodes.episodes_by_action(run.id, "train")
    order = sorted(episodes, key=lambda action: ids.content_id("rescore", action))
    return {action: episodes[action] for action in order[:count]}


async def rescore(
    store: Store, plan: ScorePlan, job: RescoreJob, progress: Callable[[int], None]
) -> RescoreResult:
    """Score the actions again, storing each score as it arrives; can be stopped and resumed.

    `progress` is told of each episode how many actions are done.
    """
    episodes = asyncio.Semaphore(EPISODES_AT_ONCE)

    async def one(episode_id: str, actions: frozenset[UUID]) -> list[CoachCall]:
        async with episodes:
            episode = await asyncio.to_thread(store.episodes.get_episode, episode_id)
            known = await asyncio.to_thread(store.scores.scores_of_episode, episode.id)
            missing = missing_scores(episode, replace(plan, actions=actions), known)
            entries = await give_scores(missing, store)
        progress(len(actions))
        return [entry.score for entry in entries]

    given = [call for calls in await together(one(*each) for each in job.actions) for call in calls]
    unscored = sum(isinstance(call, Unscored) for call in given)
    return RescoreResult(
        coach=plan.coach.identity,
        scored=len(given) - unscored,
        unscored=unscored,
        calls=sum(call.attempts for call in given),
        cost_usd=sum(call.cost_usd or 0.0 for call in given),
    )
