"""One episode: turn by turn, until no agent acts any more, and then its outcome.

Team ─▶ observation ─▶ ActionRunner.generate ─▶ what it asks for ─▶ ActionRunner.execute ─▶ Turn
▲                                                                                          │
└──────────────────────────── stored as a row, and shown to the team ◀─────────────────────┘
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from mappa_core.core import ids
from mappa_core.core.concurrency import InOneGo, in_thread
from mappa_core.core.errors import DiskFull, OutsideError, StoreError
from mappa_core.core.file_trail import files_after
from mappa_core.core.records.episodes import (
    Episode,
    Observation,
    Outcome,
    Phase,
    Problem,
    StopReason,
    Turn,
)
from mappa_core.grading.answers import verify
from mappa_core.rollout.episode_files import EpisodeFiles
from mappa_core.rollout.protocols import ActionRunner
from mappa_core.rollout.teams.base import Team
from mappa_core.store.store import Store

T = TypeVar("T")


def new_episode(
    run_id: UUID, phase: Phase, iteration: int, problem: Problem, rollout: int
) -> Episode:
    """Make an episode as it is before its first turn."""
    return Episode(
        id=ids.episode_id(run_id, phase, iteration, problem.id, rollout),
        run_id=run_id,
        phase=phase,
        iteration=iteration,
        problem=problem,
        rollout_index=rollout,
    )


class EpisodeRecords:
    """Writes down the episodes that are played at once; those of one moment together."""

    def __init__(self, store: Store) -> None:
        """Write into `store`, from the event loop that this is used in."""
        self.opened = InOneGo(store.episodes.open_episodes)
        self._add_turns = InOneGo(_for_each(store.episodes.add_turns))
        self._close = InOneGo(_for_each(store.episodes.close_episodes))

    async def add_turn(self, episode: Episode, turn: Turn) -> None:
        """Add a turn; raises `StoreError`, as the others."""
        await self._add_turns((episode, turn))

    async def close(self, episode: Episode) -> None:
        """Write the end of an episode."""
        await self._close(episode)


def _for_each(work: Callable[[Sequence[T]], None]) -> Callable[[Sequence[T]], Sequence[None]]:
    def done(asked: Sequence[T]) -> Sequence[None]:
        work(asked)
        return (None,) * len(asked)

    return done


async def play_episode(
    episode: Episode,
    *,
    team: Team,
    records: EpisodeRecords,
    runner: ActionRunner,
    files: EpisodeFiles | None = None,
) -> Episode:
    """Play one episode to its end, going on from the turns the store already has.

    A failure outside (engine, sandbox, tool, files) ends this episode as `StopReason.FAILED`,
    stored with its error; the iteration goes on without it.

    Raises:
        StoreError: A turn or the end could not be written; played again it goes on from there.
        DiskFull: The same, or no room for the files of a turn: no episode would fare better.
    """
    episode = await records.opened(episode)
    if episode.stop_reason is not None:
        return episode
    try:
        while (observation := team.next_observation(episode)) is not None:
            turn = await _turn(episode, observation, team, runner)
            await records.add_turn(episode, turn)
            episode = episode.with_turn(turn)
        outcome = await in_thread(_judge, team, episode, files)
        closed = episode.closed(team.stop_reason(episode), outcome=outcome)
    except (StoreError, DiskFull):
        raise
    except OutsideError as error:
        closed = episode.closed(StopReason.FAILED, error=str(error))
    await records.close(closed)
    return closed


async def _turn(
    episode: Episode, observation: Observation, team: Team, runner: ActionRunner
) -> Turn:
    action = await runner.generate(episode, observation)
    wanted = team.code_in(observation.agent, action.text)
    return Turn(
        index=len(episode.turns),
        agent=observation.agent,
        observation=observation,
        action=action,
        tool_result=None if wanted is None else await runner.execute(episode, wanted),
    )


def _judge(team: Team, episode: Episode, files: EpisodeFiles | None) -> Outcome:
    """Compare the team's answer with the right one, or measure its file against hidden labels.

    Raises:
        WorkspaceError: The file was there and is not any more.
    """
    answer = team.final_answer(episode)
    if files is None:
        return verify(answer, episode.problem.answer)
    # Imported here: pandas and scikit-learn take a second, which other teams do not need.
    from mappa_core.grading.submissions import grade, parse_key

    file = files_after(episode.turns).get(answer) if answer else None
    data = files.content(file.artifact.sha256) if file else None
    labels = files.tasks.labels(episode.problem)
    outcome = grade(data, labels, parse_key(episode.problem.answer))
    if file and file.stale and outcome.detail is None:
        return replace(outcome, detail=f"stale: {file.stale}")
    return outcome
