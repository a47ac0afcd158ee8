"""Scores of an episode: which are missing, what each coach may know, and how they are stored.

    Episode + ScorePlan ─▶ scores not given yet ─▶ Coach ─▶ ScoreEntry rows, one by one

An action left unscored for a reason that can pass is asked about again by the next call, until its
agent's update is made; the real score is a new row and takes over the training.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from uuid import UUID

from mappa_core.coach.case import case_of
from mappa_core.coach.protocols import Coach
from mappa_core.core import ids
from mappa_core.core.concurrency import in_thread, together
from mappa_core.core.records.episodes import Episode
from mappa_core.core.records.scores import (
    CoachCase,
    CoachIdentity,
    Duty,
    LabelVisibility,
    ScoreEntry,
    Unscored,
    UnscoredReason,
)
from mappa_core.store.store import Store

LASTING: frozenset[UnscoredReason] = frozenset({"blocked"})
"""Reasons that hold for this action at every later try; a key that was refused can be mended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePlan:
    """Says by which coaches an episode's actions are scored, how often, and knowing what."""

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
class MissingScore:
    """One score that a plan wants and the store lacks."""

    episode_id: UUID
    turn_index: int
    case: CoachCase
    coach: Coach
    visibility: LabelVisibility
    trains: bool
    tries_before: int
    """Rows of this scorer that left the action unscored."""

    @property
    def action_id(self) -> UUID:
        """The action to score."""
        return ids.action_id(self.episode_id, self.turn_index)


async def score_episode(
    episode: Episode, *, plan: ScorePlan, store: Store
) -> tuple[ScoreEntry, ...]:
    """Score what of an episode the plan wants and the store lacks; returns all of its scores.

    Each score is stored as it arrives, so a crash loses only what was under way. The scores come
    in turn order, those of one action from the oldest on.

    Raises:
        CoachError: The coach cannot work at all.
    """
    known = await asyncio.to_thread(store.scores.scores_of_episode, episode.id)
    given = await give_scores(missing_scores(episode, plan, known), store)
    trained = {entry.turn_index for entry in given if entry.trained}
    # As in the store: what was left unscored before gives the training up.
    known = [replace(e, trained=False) if e.turn_index in trained else e for e in known]
    return tuple(sorted((*known, *given), key=attrgetter("turn_index")))


def missing_scores(
    episode: Episode, plan: ScorePlan, known: Sequence[ScoreEntry]
) -> list[MissingScore]:
    """List what the plan wants of an episode beyond the `known` scores; no coach is asked."""
    missing: list[MissingScore] = []
    for turn in episode.turns:
        action_id = ids.action_id(episode.id, turn.index)
        rows = [entry for entry in known if entry.turn_index == turn.index]
        visibility = plan.visibility.get(turn.agent, LabelVisibility.NEVER)
        for coach, sample, trains in _wanted(action_id, plan):
            same = [row for row in rows if _is_by(row, coach, sample)]
            answers = [row for row in rows if row.trained] if trains else same
            if any(_stays(row, settled=turn.agent in plan.settled) for row in answers):
                continue
            case = case_of(episode, turn, visibility, sample=sample, duties=plan.duties)
            missing.append(
                MissingScore(
                    episode_id=episode.id,
                    turn_index=turn.index,
                    case=case,
                    coach=coach,
                    visibility=visibility,
                    trains=trains,
                    tries_before=len(same),
                )
            )
    return missing


def _wanted(action_id: UUID, plan: ScorePlan) -> Iterator[tuple[Coach, int, bool]]:
    """Coach, sample and whether it trains, of each score the plan wants of an action."""
    if plan.actions is not None and action_id not in plan.actions:
        return
    for sample in range(plan.repeats):
        yield plan.coach, sample, plan.trains and sample == 0
    if plan.second is not None and takes_second(action_id, plan.second_share):
        yield plan.second, 0, False


def takes_second(action_id: UUID, share: float) -> bool:
    """Whether an action is in the sampled share; always the same answer for the same action."""
    return ids.derive_seed("second opinion", action_id) < share * ids.SEEDS


def _stays(row: ScoreEntry, *, settled: bool) -> bool:
    """Whether a row is a score, or an absence that must stay."""
    return settled or not isinstance(row.score, Unscored) or row.score.reason in LASTING


def _is_by(row: ScoreEntry, coach: Coach, sample: int) -> bool:
    """The same coach, model and rubric, and the same repeat; the version is what it answered."""
    return row.repeat_index == sample and _scorer(row.identity) == _scorer(coach.identity)


def _scorer(identity: CoachIdentity) -> tuple[str, str, str]:
    return identity.coach, identity.model, identity.rubric_sha256


async def give_scores(missing: Iterable[MissingScore], store: Store) -> list[ScoreEntry]:
    """Ask coaches for what is missing; each score is stored as it arrives."""
    return await together(_give(one, store) for one in missing)


async def _give(missing: MissingScore, store: Store) -> ScoreEntry:
    identity = missing.coach.identity
    score = await missing.coach.score(missing.case)
    entry = ScoreEntry(
        id=score_id(missing.action_id, identity, missing.case.sample, missing.tries_before),
        episode_id=missing.episode_id,
        turn_index=missing.turn_index,
        identity=replace(identity, model_version=score.model_version or identity.model_version),
        repeat_index=missing.case.sample,
        label_visible=missing.visibility is not LabelVisibility.NEVER,
        visibility=missing.visibility,
        trained=missing.trains,
        score=score,
    )
    await in_thread(store.scores.add_scores, [entry])
    return entry


def score_id(action_id: UUID, identity: CoachIdentity, sample: int, tries_before: int) -> UUID:
    """The id of one scorer's score of one action; each later try has another."""
    return ids.content_id(
        "score",
        action_id,
        identity.coach,
        identity.model,
        identity.model_version,
        identity.rubric_version,
        identity.rubric_sha256,
        sample,
        tries_before,
    )
