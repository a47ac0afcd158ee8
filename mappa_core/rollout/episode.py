"""Episodes: which, with what, turn by turn, until they are judged and traced."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from uuid import UUID

from mappa_core.app.config import TrainConfig
from mappa_core.core import ids
from mappa_core.core.concurrency import in_thread
from mappa_core.core.errors import ConfigError, DiskFull, OutsideError, StoreError
from mappa_core.core.file_trail import files_after
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    GenerationRequest,
    Observation,
    Outcome,
    Phase,
    PolicyVersion,
    Problem,
    Sampling,
    StopReason,
    Turn,
)
from mappa_core.core.records.scores import Duty, ScoreEntry
from mappa_core.core.records.tools import ToolRequest, ToolResult
from mappa_core.grading.answers import verify
from mappa_core.rollout.execution import Desk
from mappa_core.rollout.protocols import Engine, Tokenizer
from mappa_core.rollout.teams.base import Team
from mappa_core.store.store import Store
from mappa_core.tracking.protocols import Tracker

Generate = Callable[[Episode, Observation], Awaitable[Action]]
Execute = Callable[[Episode, ToolRequest], Awaitable[ToolResult]]
Judge = Callable[[Team, Episode], Outcome]


def sampling_of(config: TrainConfig, phase: Phase) -> Sampling:
    """How tokens are drawn: hotter to explore, cooler to measure."""
    return Sampling(
        temperature=(
            config.rollout.temperature if phase == "train" else config.evaluation.temperature
        ),
        top_p=config.rollout.top_p if phase == "train" else 1.0,
        max_tokens=config.rollout.max_tokens,
    )


def problems_of_iteration(
    problems: Sequence[Problem], iteration: int, count: int, seed: int
) -> tuple[Problem, ...]:
    """The `count` different problems of training iteration 1, 2, ...

    Each pass sees all in a new order. Where an iteration ends one pass and begins the next, what
    it has of the one comes later in the other.

    Raises:
        ConfigError: There are fewer than `count`.
    """
    check_enough(problems, count)
    last = iteration * count
    order: list[int] = []
    for epoch in range(math.ceil(last / len(problems))):
        begun = len(order) % count
        shuffled = list(range(len(problems)))
        Random(ids.derive_seed(seed, "order", epoch)).shuffle(shuffled)  # noqa: S311
        order += _after(shuffled, order[len(order) - begun :], -len(order) % count)
    return tuple(problems[index] for index in order[last - count : last])


def check_enough(problems: Sequence[Problem], count: int) -> None:
    """Refuse to draw more problems for an iteration than there are.

    Raises:
        ConfigError: There are fewer than `count`.
    """
    if count > len(problems):
        raise ConfigError(
            f"rollout.problems={count}, and there are {len(problems)} to train on: lower "
            "rollout.problems, or raise problems.train_size"
        )


def _after(order: Sequence[int], taken: Sequence[int], room: int) -> list[int]:
    """The order with none of `taken` among its first `room`: each changes places with a later one.

    Args:
        order: A permutation; at least `room` of it are not taken.
        taken: What the iteration has already.
        room: How many it still lacks.
    """
    mended = list(order)
    free = (at for at in range(room, len(mended)) if mended[at] not in taken)
    for at in range(room):
        if mended[at] in taken:
            other = next(free)
            mended[at], mended[other] = mended[other], mended[at]
    return mended


def new_episode(
    run_id: UUID, phase: Phase, iteration: int, problem: Problem, rollout: int
) -> Episode:
    """An episode before its first turn."""
    return Episode(
        id=ids.episode_id(run_id, phase, iteration, problem.id, rollout),
        run_id=run_id,
        phase=phase,
        iteration=iteration,
        problem=problem,
        rollout_index=rollout,
    )


def generation_seed(seed: int, episode: Episode) -> int:
    """The seed of an episode's next action.

    Held-out episodes keep theirs over the iterations, so before and after differ by the
    weights alone.
    """
    iteration = episode.iteration if episode.phase == "train" else 0
    return ids.derive_seed(
        seed,
        episode.phase,
        iteration,
        episode.problem.id,
        episode.rollout_index,
        len(episode.turns),
    )


async def generate(
    episode: Episode,
    observation: Observation,
    policy: PolicyVersion,
    *,
    engine: Engine,
    tokenizer: Tokenizer,
    config: TrainConfig,
) -> Action:
    """Sample the next action of an episode.

    Raises:
        EngineError: The engine died and did not come back.
    """
    sampling = sampling_of(config, episode.phase)
    seed = generation_seed(config.seed, episode)
    prompt = tokenizer.render(observation.messages)
    started_at = datetime.now(UTC)
    completion = await engine.generate(
        GenerationRequest(policy=policy, prompt_token_ids=prompt, sampling=sampling, seed=seed)
    )
    return Action(
        prompt_token_ids=prompt,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        text=tokenizer.decode(completion.token_ids),
        finish_reason=completion.finish_reason,
        policy_version_id=policy.id,
        temperature=sampling.temperature,
        seed=seed,
        started_at=started_at,
        seconds=completion.seconds,
    )


def judge_answer(team: Team, episode: Episode) -> Outcome:
    """Compare what the team answered with the right answer."""
    return verify(team.final_answer(episode), episode.problem.answer)


def judge_submission(team: Team, episode: Episode, desk: Desk) -> Outcome:
    """Measure the file that the team submits against the hidden labels.

    Raises:
        WorkspaceError: The file was there and is not any more.
    """
    # Imported here: pandas and scikit-learn take a second, which other teams do not need.
    from mappa_core.grading.submissions import judge, parse_key

    name = team.final_answer(episode)
    file = files_after(episode.turns).get(name) if name else None
    data = desk.workspaces.content(file.artifact.sha256) if file else None
    labels = desk.tasks.labels(episode.problem)
    outcome = judge(data, labels, parse_key(episode.problem.answer))
    if file and file.stale and outcome.detail is None:
        return replace(outcome, detail=f"stale: {file.stale}")
    return outcome


async def play_episode(
    episode: Episode,
    *,
    team: Team,
    store: Store,
    generate: Generate,
    execute: Execute,
    judge: Judge = judge_answer,
) -> Episode:
    """Play one episode to its end, going on from the turns the store already has.

    A failure outside (engine, sandbox, tool, files) ends this episode as `StopReason.FAILED`,
    stored with its error; the iteration goes on without it.

    Raises:
        StoreError: A turn or the end could not be written; played again it goes on from there.
        DiskFull: The same, or no room for the files of a turn: no episode would fare better.
    """
    episode = await in_thread(store.episodes.open_episode, episode)
    if episode.stop_reason is not None:
        return episode
    try:
        while (observation := team.next_observation(episode)) is not None:
            turn = await _take_turn(episode, observation, team, generate, execute)
            await in_thread(store.episodes.add_turn, episode, turn)
            episode = episode.with_turn(turn)
        outcome = await in_thread(judge, team, episode)
        closed = episode.closed(team.stop_reason(episode), outcome=outcome)
    except (StoreError, DiskFull):
        raise
    except OutsideError as error:
        closed = episode.closed(StopReason.FAILED, error=str(error))
    await in_thread(store.episodes.close_episode, closed)
    return closed


async def _take_turn(
    episode: Episode, observation: Observation, team: Team, generate: Generate, execute: Execute
) -> Turn:
    action = await generate(episode, observation)
    asked = team.code_in(observation.agent, action.text)
    return Turn(
        index=len(episode.turns),
        agent=observation.agent,
        observation=observation,
        action=action,
        tool_result=None if asked is None else await execute(episode, asked),
    )


def duties_of(team: Team) -> tuple[Duty, ...]:
    """The files each agent has to leave, in the order of the chain."""
    return tuple(Duty(agent=agent.name, files=agent.makes) for agent in team.agents if agent.makes)


def is_traced(episode: Episode, share: float) -> bool:
    """Whether an episode is among the `share` that MLflow shows; the same in every process."""
    return ids.derive_seed("trace", episode.id) < share * ids.SEEDS


def trace_episode(
    episode: Episode,
    entries: Sequence[ScoreEntry],
    *,
    share: float,
    tracker: Tracker,
    tracker_run_id: str,
) -> None:
    """Show a finished episode and its scores in the tracker, where it is one of the share.

    Raises:
        TrackerError: The tracker is unreachable or refused.
    """
    if is_traced(episode, share):
        tracker.trace(tracker_run_id, episode, entries)
