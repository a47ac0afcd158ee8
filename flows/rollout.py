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

from mappa_core import steps
from mappa_core.bootstrap import services
from mappa_core.config import TrainConfig
from mappa_core.domain.records import (
    Action,
    Episode,
    Observation,
    Outcome,
    Phase,
    PolicyVersion,
    Problem,
    ScoreEntry,
    ToolResult,
)
from mappa_core.teams.base import Team

RETRIES = 2
"""Of a task that calls outside; the steps repeat only what the store lacks."""


@task(name="generate", task_run_name="generate {observation.agent}", cache_policy=NO_CACHE)
async def generate_task(
    episode: Episode, observation: Observation, policy: PolicyVersion, config: TrainConfig
) -> Action:
    """One action as a task run of its own (granularity `action`)."""
    return await _generate(episode, observation, policy, config)


@task(name="execute", task_run_name="execute code", cache_policy=NO_CACHE)
async def execute_task(episode: Episode, code: str, config: TrainConfig) -> ToolResult:
    """One sandboxed run as a task run of its own (granularity `action`)."""
    return await _execute(episode, code, config)


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

    async def execute(current: Episode, code: str) -> ToolResult:
        return await (execute_task if by_action else _execute)(current, code, config)

    port = services()
    return await steps.play_episode(
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
        return steps.judge_answer(team, episode)
    return steps.judge_submission(team, episode, desk)


async def _generate(
    episode: Episode, observation: Observation, policy: PolicyVersion, config: TrainConfig
) -> Action:
    port = services()
    return await steps.generate(
        episode, observation, policy, engine=port.engine, tokenizer=port.tokenizer, config=config
    )


async def _execute(episode: Episode, code: str, config: TrainConfig) -> ToolResult:
    port, limits = services(), steps.limits_of(config.sandbox)
    return await steps.run_code(episode, code, sandbox=port.sandbox, desk=port.desk, limits=limits)


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
) -> tuple[ScoreEntry, ...]:
    """Score the actions of one finished episode."""
    port = services()
    return await steps.score_episode(
        episode, coach=port.coach, store=port.store, duties=steps.duties_of(port.team)
    )


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
    policies = {
        agent.name: await asyncio.to_thread(
            steps.policy_at, port.store, run_id, agent.name, policy_step
        )
        for agent in port.team.agents
    }
    await asyncio.gather(*(port.engine.load(policy) for policy in policies.values()))
    episodes = _planned(run_id, phase, iteration, config)
    port.watcher.phase(phase, iteration, len(episodes))
    slots = asyncio.Semaphore(config.rollout.concurrency)

    async def one(number: int, episode: Episode) -> None:
        label = f"{number + 1}/{len(episodes)}"
        async with slots:
            played = await play(episode, label, policies, config)
        entries = await coach_score(played, label) if phase == "train" else ()
        port.watcher.episode(played, entries)

    await asyncio.gather(*(one(number, episode) for number, episode in enumerate(episodes)))
    return len(episodes)


def _planned(run_id: UUID, phase: Phase, iteration: int, config: TrainConfig) -> list[Episode]:
    problems: Sequence[Problem]
    if phase == "train":
        count, repeats = config.rollout.problems, config.rollout.episodes_per_problem
        train = services().problems.train()
        problems = steps.problems_of_iteration(train, iteration, count, config.seed)
    else:
        problems, repeats = services().problems.held_out(), config.evaluation.samples
    return [
        steps.new_episode(run_id, phase, iteration, problem, rollout_index)
        for problem in problems
        for rollout_index in range(repeats)
    ]
