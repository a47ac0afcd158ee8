"""One episode: turn by turn, until no agent acts any more, and then its outcome.

Team ─▶ observation ─▶ ActionRunner.generate ─▶ what it asks for ─▶ ActionRunner.execute ─▶ Turn
▲                                                                                          │
└──────────────────────────── stored as a row, and shown to the team ◀─────────────────────┘
"""

from uuid import UUID

from mappa_core.core import ids
from mappa_core.core.concurrency import in_thread
from mappa_core.core.errors import DiskFull, OutsideError, StoreError
from mappa_core.core.records.episodes import Episode, Observation, Phase, Problem, StopReason, Turn
from mappa_core.rollout.episode_files import EpisodeFiles
from mappa_core.rollout.judging import judge
from mappa_core.rollout.protocols import ActionRunner
from mappa_core.rollout.teams.base import Team
from mappa_core.store.store import Store


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


async def play_episode(
    episode: Episode,
    *,
    team: Team,
    store: Store,
    runner: ActionRunner,
    files: EpisodeFiles | None = None,
) -> Episode:
    """Play one episode to its end, going on from the turns the store already has.

    A failure outside (engine, sandbox, tool, files) ends this episode as `StopReason.FAILED`,
    stored with its error; the iteration goes on without it.

    Args:
        episode: Which; without its turns.
        team: Decides who acts on what.
        store: Has its turns, and is given each new one.
        runner: Samples actions and does what they ask for.
        files: What a team that works on files hands in; None for one that answers.

    Raises:
        StoreError: A turn or the end could not be written; played again it goes on from there.
        DiskFull: The same, or no room for the files of a turn: no episode would fare better.
    """
    episode = await in_thread(store.episodes.open_episode, episode)
    if episode.stop_reason is not None:
        return episode
    try:
        while (observation := team.next_observation(episode)) is not None:
            turn = await _turn(episode, observation, team, runner)
            await in_thread(store.episodes.add_turn, episode, turn)
            episode = episode.with_turn(turn)
        outcome = await in_thread(judge, team, episode, files)
        closed = episode.closed(team.stop_reason(episode), outcome=outcome)
    except (StoreError, DiskFull):
        raise
    except OutsideError as error:
        closed = episode.closed(StopReason.FAILED, error=str(error))
    await in_thread(store.episodes.close_episode, closed)
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
