"""Scores of an episode: who is asked about which action, what is missing, what the coach may know.

    Episode + ScorePlan ─▶ asks not answered yet ─▶ Coach ─▶ ScoreEntry rows, one by one

An action left unscored for a reason that can pass is asked about again by whoever comes next, until
its agent's update is made; the real score is a new row and takes over the training.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from mappa_core.coach.facts import facts_of
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.concurrency import in_thread, together
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    Duty,
    LabelVisibility,
    ScoreEntry,
    Unscored,
    UnscoredReason,
)
from mappa_core.store.protocols import Store

LASTING: frozenset[UnscoredReason] = frozenset({"blocked"})
"""Reasons that hold for this action whoever asks again; a key that was refused can be mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePlan:
    """Who scores an episode's actions, how often, and knowing what."""

    coach: Coach
    repeats: int = 1
    """Scores per action; the first one trains."""
    second: Coach | None = None
    second_share: float = 0.0
    """Of the actions, those the second coach scores too, in [0, 1]."""
    visibility: Mapping[str, LabelVisibility] = field(default_factory=dict[str, LabelVisibility])
    """By agent; `never` where nothing is said."""
    duties: tuple[Duty, ...] = ()
    """Which files each agent of the team has to leave behind."""
    settled: frozenset[str] = frozenset()
    """Agents whose update is made: what is unscored stays so."""
    actions: frozenset[UUID] | None = None
    """Only these; None for all of the episode."""
    trains: bool = True
    """False for scores that come later, which are rows beside those that trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    """One score that is wanted."""

    turn: Turn
    action_id: UUID
    coach: Coach
    sample: int
    trains: bool


async def score_episode(
    episode: Episode, *, plan: ScorePlan, store: Store
) -> tuple[ScoreEntry, ...]:
    """Score what of an episode the plan wants and the store lacks; returns all of its scores.

    Each score is stored as it arrives, so a crash loses only what was under way.

    Raises:
        CoachError: The coach cannot work at all.
    """
    known = await asyncio.to_thread(store.scores, episode.id)
    missing = [ask for ask in _wanted(episode, plan) if not _answered(ask, known, plan)]
    if not missing:
        return known
    await together(_ask(episode, ask, known, plan, store) for ask in missing)
    return await asyncio.to_thread(store.scores, episode.id)


def missing_scores(
    episode: Episode, plan: ScorePlan, known: Sequence[ScoreEntry]
) -> tuple[tuple[UUID, CoachCase], ...]:
    """What `score_episode` would ask about, by action; nothing is asked."""
    return tuple(
        (
            ask.action_id,
            _case(episode, ask, plan),
        )
        for ask in _wanted(episode, plan)
        if not _answered(ask, known, plan)
    )


def _case(episode: Episode, ask: _Ask, plan: ScorePlan) -> CoachCase:
    visibility = visibility_of(plan, ask.turn.agent)
    return case_of(episode, ask.turn, visibility, sample=ask.sample, duties=plan.duties)


def case_of(
    episode: Episode,
    turn: Turn,
    visibility: LabelVisibility,
    *,
    sample: int = 0,
    duties: tuple[Duty, ...] = (),
) -> CoachCase:
    """The evidence about one action, with as much of the truth as `visibility` allows."""
    full = visibility is LabelVisibility.FULL
    outcome = None if visibility is LabelVisibility.NEVER else episode.outcome
    return CoachCase(
        statement=episode.problem.statement,
        agent=turn.agent,
        messages=turn.observation.messages,
        text=turn.action.text,
        tool_result=turn.tool_result,
        earlier=episode.turns[: turn.index],
        task_type=episode.problem.task_type,
        facts=facts_of(episode.turns[: turn.index + 1], duties, outcome),
        outcome=outcome,
        expected_answer=episode.problem.answer if full else None,
        sample=sample,
        duties=duties,
    )


def visibility_of(plan: ScorePlan, agent: str) -> LabelVisibility:
    """What the plan lets a coach know when it scores `agent`."""
    return plan.visibility.get(agent, LabelVisibility.NEVER)


def takes_second(action_id: UUID, share: float) -> bool:
    """Whether an action is in the sampled share; always the same answer for the same action."""
    return ids.derive_seed("second opinion", action_id) < share * 2**31


def _wanted(episode: Episode, plan: ScorePlan) -> list[_Ask]:
    asks: list[_Ask] = []
    for turn in episode.turns:
        action = ids.action_id(episode.id, turn.index)
        if plan.actions is not None and action not in plan.actions:
            continue
        for sample in range(plan.repeats):
            trains = plan.trains and sample == 0
            asks.append(
                _Ask(turn=turn, action_id=action, coach=plan.coach, sample=sample, trains=trains)
            )
        if plan.second is not None and takes_second(action, plan.second_share):
            asks.append(
                _Ask(turn=turn, action_id=action, coach=plan.second, sample=0, trains=False)
            )
    return asks


def _answered(ask: _Ask, known: Sequence[ScoreEntry], plan: ScorePlan) -> bool:
    """Whether a row answers `ask`, or is an absence that must stay."""
    rows = [entry for entry in known if entry.action_id == ask.action_id]
    if ask.trains:
        rows = [entry for entry in rows if entry.trained]
    else:
        rows = [entry for entry in rows if _same_scorer(entry, ask)]
    stays = ask.turn.agent in plan.settled
    return any(
        stays or not isinstance(row.score, Unscored) or row.score.reason in LASTING for row in rows
    )


def _same_scorer(entry: ScoreEntry, ask: _Ask) -> bool:
    """The same coach, model and rubric, and the same repeat; the version is what it answered."""
    return (
        _scorer(entry.identity) == _scorer(ask.coach.identity) and entry.repeat_index == ask.sample
    )


def _scorer(identity: CoachIdentity) -> tuple[str, str, str]:
    return identity.coach, identity.model, identity.rubric_sha256


async def _ask(
    episode: Episode, ask: _Ask, known: Sequence[ScoreEntry], plan: ScorePlan, store: Store
) -> None:
    visibility = visibility_of(plan, ask.turn.agent)
    score = await ask.coach.score(_case(episode, ask, plan))
    identity = ask.coach.identity
    before = sum(entry.action_id == ask.action_id and _same_scorer(entry, ask) for entry in known)
    again = (before,) if before else ()
    entry = ScoreEntry(
        id=ids.content_id("score", ask.action_id, identity, ask.sample, *again),
        action_id=ask.action_id,
        identity=replace(identity, model_version=score.model_version or identity.model_version),
        repeat_index=ask.sample,
        label_visible=visibility is not LabelVisibility.NEVER,
        visibility=visibility,
        trained=ask.trains,
        score=score,
    )
    await in_thread(store.add_scores, [entry])
