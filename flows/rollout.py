"""Episodes: P problems x G episodes, concurrent, task runs of Prefect (or their actions, or none).

rollout ─┬─ episode ─▶ coach_score        scoring runs beside the episodes still playing
         ├─ episode ─▶ coach_score
         └─ ...
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar
from uuid import UUID

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import opaque

from flows.limits import limited
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, services
from mappa_core.coach.protocols import SolvingCoach
from mappa_core.coach.scoring import ScorePlan, score_episode
from mappa_core.core.concurrency import in_thread, together
from mappa_core.core.errors import OutsideError
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    Observation,
    Phase,
    PolicyVersion,
    Problem,
)
from mappa_core.core.records.scores import ScoreEntry
from mappa_core.core.records.tools import ToolRequest, ToolResult
from mappa_core.rollout.actions import DirectRunner, limits_of, sampling_of
from mappa_core.rollout.episode import EpisodeRecords, new_episode, play_episode
from mappa_core.rollout.problems.drawing import problems_of_iteration
from mappa_core.rollout.protocols import ActionRunner, AheadEngine, Engine, ProblemSource
from mappa_core.rollout.teams.base import duties_of
from mappa_core.tracking.traces import Traces
from mappa_core.train.update import policy_at

P = ParamSpec("P")
T = TypeVar("T")

RETRIES, RETRY_SECONDS = 2, 2
"""Of a task that calls outside; repeated, it does only what the store lacks."""


class Loads:
    """Loads policies; a request waits for its agent's, and not for those of others."""

    def __init__(self, engine: Engine, policies: Iterable[PolicyVersion]) -> None:
        self._engine = engine
        self._left = {policy.agent: policy for policy in policies}
        self._served = {agent: asyncio.Event() for agent in self._left}

    def work(self) -> list[Coroutine[object, object, None]]:
        """List what is left to do, for whoever awaits it."""
        left, self._left = self._left, {}
        return [self._load(policy) for policy in left.values()]

    async def served(self, agent: str) -> None:
        """Return when the agent's policy is loaded."""
        if agent in self._served:
            await self._served[agent].wait()

    async def _load(self, policy: PolicyVersion) -> None:
        await self._engine.load(policy)
        self._served[policy.agent].set()


class ActionTasks:
    """Makes each action, and what it asks for, a Prefect task run (granularity `action`)."""

    def __init__(self, runner: ActionRunner) -> None:
        generate = task(
            name="generate", task_run_name="generate {observation.agent}", cache_policy=NO_CACHE
        )
        execute = task(name="execute", task_run_name="execute code", cache_policy=NO_CACHE)
        self._generate = unsearched(generate(runner.generate))
        self._execute = unsearched(execute(runner.execute))

    async def generate(self, episode: Episode, observation: Observation) -> Action:
        """Sample an action as a task run; see `ActionRunner`."""
        return await self._generate(episode, observation)

    async def execute(self, episode: Episode, request: ToolRequest) -> ToolResult:
        """Run a program, or call a tool, as a task run; see `ActionRunner`."""
        return await self._execute(episode, request)


@task(
    name="episode",
    task_run_name="episode {episode.problem.task_type} {label}",
    cache_policy=NO_CACHE,
    retries=RETRIES,
    retry_delay_seconds=RETRY_SECONDS,
    persist_result=False,
)
async def play(
    episode: Episode,
    label: str,  # noqa: ARG001 (names the task run)
    runner: ActionRunner,
    records: EpisodeRecords,
) -> Episode:
    """Play one episode; what a crash or a retry left undone is done."""
    port = services()
    return await play_episode(
        episode, team=port.team, records=records, runner=runner, files=port.files
    )


@task(
    name="coach_score",
    task_run_name="coach_score {label}",
    cache_policy=NO_CACHE,
    retries=RETRIES,
    retry_delay_seconds=RETRY_SECONDS,
    persist_result=False,
)
async def coach_score(
    episode: Episode,
    label: str,  # noqa: ARG001 (names the task run)
    plan: ScorePlan,
) -> tuple[ScoreEntry, ...]:
    """Score the actions of one finished episode; returns all of its scores."""
    async with limited("mappa-coach"):
        return await score_episode(episode, plan=plan, store=services().store)


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
    run = await asyncio.to_thread(port.store.runs.get_run, str(run_id))
    episodes = planned(port.problems, run_id, phase, iteration, config)
    policies = await _policies(port, run_id, policy_step)
    loads = await _loads(port, run_id, policies, episodes)
    if not loads_ahead(port.engine):
        await together(loads.work())
    runner = _runner(port, phase, policies, loads, config)
    plan = await _score_plan(port, run_id, iteration, config) if phase == "train" else None
    port.progress.on_phase_started(phase, iteration, len(episodes))
    traces = Traces(
        tracker=port.tracker,
        tracker_run_id=run.mlflow_run_id or "",
        share=config.tracking.trace_share,
    )
    places = asyncio.Semaphore(config.rollout.concurrency)
    records = EpisodeRecords(port.store)
    playing, scoring = unsearched(play), unsearched(coach_score)
    if config.rollout.granularity == "rollout":
        playing, scoring = repeated(play.fn), repeated(coach_score.fn)

    async def one(number: int, episode: Episode) -> None:
        label = f"{number + 1}/{len(episodes)}"
        async with places:
            played = await playing(episode, label, runner, records)
        entries = () if plan is None else await scoring(played, label, plan)
        port.progress.on_episode_ended(played, entries)
        if traces.has(played):
            await in_thread(traces.show, played, entries)

    playing_all = (one(number, episode) for number, episode in enumerate(episodes))
    await together((*loads.work(), *playing_all))
    if missing := await asyncio.to_thread(traces.check, episodes):
        port.progress.on_waiting(missing)
    return len(episodes)


def unsearched(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Have Prefect take a task's arguments as they are, without looking for futures in them.

    It would visit every token of an episode, twice for each of its task runs.
    """

    async def done(*args: P.args, **kwargs: P.kwargs) -> T:
        return await work(*map(opaque, args), **kwargs)  # pyright: ignore[reportCallIssue]

    return done


def repeated(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """`work`, done again as often as a task run would where something outside fails."""

    async def done(*args: P.args, **kwargs: P.kwargs) -> T:
        for _ in range(RETRIES):
            try:
                return await work(*args, **kwargs)
            except OutsideError:
                await asyncio.sleep(RETRY_SECONDS)
        return await work(*args, **kwargs)

    return done


def _runner(
    port: Services,
    phase: Phase,
    policies: Mapping[str, PolicyVersion],
    loads: Loads,
    config: TrainConfig,
) -> ActionRunner:
    runner = DirectRunner(
        engine=port.engine,
        tokenizer=port.tokenizer,
        policies=policies,
        sampling=sampling_of(config.rollout, phase, config.evaluation.temperature),
        agent_tokens=config.rollout.agent_tokens,
        thought_tokens=config.rollout.thought_tokens,
        agent_thought_tokens=config.rollout.agent_thought_tokens,
        longest=config.engine.max_model_length,
        seed=config.seed,
        sandbox=port.sandbox,
        limits=limits_of(config.sandbox),
        toolbox=port.toolbox,
        files=port.files,
        limited=limited,
        served=loads.served,
    )
    return ActionTasks(runner) if config.rollout.granularity == "action" else runner


async def _score_plan(
    port: Services, run_id: UUID, iteration: int, config: TrainConfig
) -> ScorePlan:
    """Plan an iteration's scores; agents that are updated from it keep those they have."""
    policies = await asyncio.to_thread(port.store.policies.list_policy_versions, run_id)
    return ScorePlan(
        coach=port.scoring_coach,
        repeats=config.coach.repeats,
        second=port.second_coach,
        second_share=config.coach.second.share,
        visibility=config.coach.visibility,
        settled=frozenset(policy.agent for policy in policies if policy.step == iteration),
        duties=duties_of(port.team),
    )


async def serve(
    port: Services, run_id: UUID, policy_step: int, episodes: Sequence[Episode]
) -> None:
    """Load every agent's policy after `policy_step` updates for `episodes`."""
    policies = await _policies(port, run_id, policy_step)
    await together((await _loads(port, run_id, policies, episodes)).work())


async def _policies(port: Services, run_id: UUID, step: int) -> Mapping[str, PolicyVersion]:
    """Look up every agent's policy after `step` updates; by name."""
    return {
        agent.name: await asyncio.to_thread(policy_at, port.store, run_id, agent.name, step)
        for agent in port.team.agents
    }


async def _loads(
    port: Services,
    run_id: UUID,
    policies: Mapping[str, PolicyVersion],
    episodes: Sequence[Episode],
) -> Loads:
    """Say what to load for `episodes`.

    Where those have all been played it is nothing: a resumed run may have retired the weights.
    """
    first = episodes[0]
    figures = await asyncio.to_thread(
        port.store.figures.get_iteration_figures, run_id, first.phase, first.iteration
    )
    left = figures.episodes < len(episodes)
    return Loads(port.engine, policies.values() if left else ())


def loads_ahead(engine: Engine) -> bool:
    """Tell whether the engine takes one agent's weights while others learn or play."""
    return isinstance(engine, AheadEngine) and engine.loads_ahead


async def solve_ahead(port: Services, run_id: UUID, iteration: int, config: TrainConfig) -> None:
    """Have the coach solve an iteration's tasks, where it judges with a solution of its own.

    Asked for with the first case of a task, a solution is what all of the task's cases wait for.
    What a resumed run has learnt from already is left alone.
    """
    if not isinstance(port.coach, SolvingCoach) or iteration > config.rollout.iterations:
        return
    first = port.team.agents[0].name
    if await asyncio.to_thread(port.store.updates.get_update, run_id, first, iteration) is None:
        episodes = planned(port.problems, run_id, "train", iteration, config)
        await port.coach.solve(episode.problem.statement for episode in episodes)


def planned(
    source: ProblemSource, run_id: UUID, phase: Phase, iteration: int, config: TrainConfig
) -> list[Episode]:
    """Make the episodes of one iteration, before their first turn and in a fixed order."""
    problems: Sequence[Problem]
    if phase == "train":
        rules, repeats = config.rollout, config.rollout.episodes_per_problem
        problems = problems_of_iteration(
            source.train(), iteration, rules.problems, config.seed, rules.draw
        )
    else:
        problems, repeats = source.held_out(), config.evaluation.samples
    return [
        new_episode(run_id, phase, iteration, problem, rollout_index)
        for problem in problems
        for rollout_index in range(repeats)
    ]
