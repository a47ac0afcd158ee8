"""Episodes: P problems x G episodes, concurrent, each a Prefect task run (or each action one).

rollout ─┬─ episode ─▶ coach_score        scoring runs beside the episodes still playing
         ├─ episode ─▶ coach_score
         └─ ...
"""

import asyncio
from collections.abc import Mapping, Sequence
from uuid import UUID

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.limits import slot
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import services
from mappa_core.coach import scoring
from mappa_core.coach.config import CoachConfig
from mappa_core.core.concurrency import in_thread, together
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    Observation,
    Outcome,
    Phase,
    PolicyVersion,
    Problem,
)
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.records.tools import ToolRequest, ToolResult
from mappa_core.rollout.episode import (
    duties_of,
    is_traced,
    judge_answer,
    judge_submission,
    new_episode,
    play_episode,
    problems_of_iteration,
    trace_episode,
)
from mappa_core.rollout.episode import (
    generate as generate_of_steps,
)
from mappa_core.rollout.execution import Workbench, limits_of
from mappa_core.rollout.execution import execute as execute_of_steps
from mappa_core.rollout.teams.base import Team
from mappa_core.train.update import policy_at

RETRIES = 2
"""Of a task that calls outside; the steps repeat only what the store lacks."""


@task(name="generate", task_run_name="generate {observation.agent}", cache_policy=NO_CACHE)
async def generate_task(
    episode: Episode, observation: Observation, policy: PolicyVersion, config: TrainConfig
) -> Action:
    """One action as a task run of its own (granularity `action`)."""
    return await _generate(episode, observation, policy, config)


@task(name="execute", task_run_name="execute code", cache_policy=NO_CACHE)
async def execute_task(episode: Episode, request: ToolRequest, config: TrainConfig) -> ToolResult:
    """One run of a program, or call of a tool, as a task run of its own (granularity `action`)."""
    return await _execute(episode, request, config)


@task(
    name="episode",
    task_run_name="episode {episode.problem.task_type} {label}",
    cache_policy=NO_CACHE,
    retries=RETRIES,
    retry_delay_seconds=2,
    persist_result=False,
)
async def play(
    episode: Episode,
    label: str,  # noqa: ARG001 (names the task run)
    policies: Mapping[str, PolicyVersion],
    config: TrainConfig,
) -> Episode:
    """Play one episode; what a crash or a retry left undone is done."""
    by_action = config.rollout.granularity == "action"

    async def generate(current: Episode, observation: Observation) -> Action:
        policy = policies[observation.agent]
        call = generate_task if by_action else _generate
        return await call(current, observation, policy, config)

    async def execute(current: Episode, request: ToolRequest) -> ToolResult:
        return await (execute_task if by_action else _execute)(current, request, config)

    port = services()
    return await play_episode(
        episode,
        team=port.team,
        store=port.store,
        generate=generate,
        execute=execute,
        judge=_judge,
    )


def _judge(team: Team, episode: Episode) -> Outcome:
    desk = services().desk
    if desk is None:
        return judge_answer(team, episode)
    return judge_submission(team, episode, desk)


async def _generate(
    episode: Episode, observation: Observation, policy: PolicyVersion, config: TrainConfig
) -> Action:
    port = services()
    async with slot("mappa-engine"):
        return await generate_of_steps(
            episode,
            observation,
            policy,
            engine=port.engine,
            tokenizer=port.tokenizer,
            config=config,
        )


async def _execute(episode: Episode, request: ToolRequest, config: TrainConfig) -> ToolResult:
    port = services()
    bench = Workbench(
        sandbox=port.sandbox,
        limits=limits_of(config.sandbox),
        toolbox=port.toolbox,
        desk=port.desk,
    )
    async with slot("mappa-sandbox"):
        return await execute_of_steps(episode, request, bench)


@task(
    name="coach_score",
    task_run_name="score {label}",
    cache_policy=NO_CACHE,
    retries=RETRIES,
    retry_delay_seconds=2,
    persist_result=False,
)
async def coach_score(
    episode: Episode,
    label: str,  # noqa: ARG001 (names the task run)
    coach: CoachConfig,
    settled: frozenset[str],
) -> tuple[ScoreEntry, ...]:
    """Score the actions of one finished episode; those of `settled` agents stay as they are."""
    port = services()
    plan = scoring.ScorePlan(
        coach=port.coach,
        repeats=coach.repeats,
        second=port.second_coach,
        second_share=coach.second.share,
        visibility=coach.visibility,
        settled=settled,
        duties=duties_of(port.team),
    )
    async with slot("mappa-coach"):
        return await scoring.score_episode(episode, plan=plan, store=port.store)


@flow(name="rollout", flow_run_name="rollout {phase} {iteration}", persist_result=False)
async def rollout(
    run_id: UUID, phase: Phase, iteration: int, policy_step: int, config: TrainConfig
) -> int:
    """Play (and, in training, score) all episodes of one iteration; returns how many.

    Args:
        run_id: The run in the store.
        phase: `train` draws this iteration's problems; `held_out` takes all held-out ones.
        iteration: Training: 1, 2, ...; held out: updates so far.
        policy_step: Which version of every agent plays.
        config: The run's configuration.
    """
    port = services()
    episodes = planned(run_id, phase, iteration, config)
    policies = await serve(run_id, policy_step, episodes)
    run = await asyncio.to_thread(port.store.runs.get_run, str(run_id))
    tracker_run_id, share = run.mlflow_run_id or "", config.tracking.trace_share
    port.progress.on_phase_started(phase, iteration, len(episodes))
    slots = asyncio.Semaphore(config.rollout.concurrency)
    settled = await _settled(run_id, phase, iteration)

    async def one(number: int, episode: Episode) -> None:
        label = f"{number + 1}/{len(episodes)}"
        async with slots:
            played = await play(episode, label, policies, config)
        entries: tuple[ScoreEntry, ...] = ()
        if phase == "train":
            entries = await coach_score(played, label, config.coach, settled)
        port.progress.on_episode_ended(played, entries)
        await in_thread(
            trace_episode,
            played,
            entries,
            share=share,
            tracker=port.tracker,
            tracker_run_id=tracker_run_id,
        )

    await together(one(number, episode) for number, episode in enumerate(episodes))
    expected = sum(is_traced(episode, share) for episode in episodes)
    await _check_traces(tracker_run_id, phase, iteration, expected)
    return len(episodes)


async def serve(
    run_id: UUID, policy_step: int, episodes: Sequence[Episode]
) -> Mapping[str, PolicyVersion]:
    """Every agent's policy after `policy_step` updates, by name, loaded for the planned `episodes`.

    Where those have all been played nothing is loaded: a resumed run may have retired the weights.
    """
    port = services()
    policies = {
        agent.name: await asyncio.to_thread(policy_at, port.store, run_id, agent.name, policy_step)
        for agent in port.team.agents
    }
    first = episodes[0]
    figures = await asyncio.to_thread(
        port.store.figures.get_iteration_figures, run_id, first.phase, first.iteration
    )
    if figures.episodes < len(episodes):
        await together(port.engine.load(policy) for policy in policies.values())
    return policies


async def _check_traces(tracker_run_id: str, phase: Phase, iteration: int, expected: int) -> None:
    """Nothing is lost silently: MLflow's traces are counted against the store's episodes."""
    port = services()
    shown = await asyncio.to_thread(port.tracker.traced, tracker_run_id, phase, iteration)
    metrics = {f"{phase}/traces": float(shown), f"{phase}/traces_missing": float(expected - shown)}
    await asyncio.to_thread(port.tracker.log, tracker_run_id, iteration, metrics)
    if shown < expected:
        port.progress.on_waiting(
            f"MLflow shows {shown} of {expected} traces of {phase} {iteration}; "
            "the store has all of them"
        )


async def _settled(run_id: UUID, phase: Phase, iteration: int) -> frozenset[str]:
    """Agents that have learnt from this iteration already; a new score would change nothing."""
    port = services()
    agents = [agent.name for agent in port.team.agents] if phase == "train" else []
    updates = await together(
        in_thread(port.store.updates.get_update, run_id, agent, iteration) for agent in agents
    )
    return frozenset(agent for agent, made in zip(agents, updates, strict=True) if made is not None)


def planned(run_id: UUID, phase: Phase, iteration: int, config: TrainConfig) -> list[Episode]:
    """The episodes of one iteration before their first turn, in a fixed order."""
    problems: Sequence[Problem]
    if phase == "train":
        count, repeats = config.rollout.problems, config.rollout.episodes_per_problem
        train = services().problems.train()
        problems = problems_of_iteration(train, iteration, count, config.seed)
    else:
        problems, repeats = services().problems.held_out(), config.evaluation.samples
    return [
        new_episode(run_id, phase, iteration, problem, rollout_index)
        for problem in problems
        for rollout_index in range(repeats)
    ]
