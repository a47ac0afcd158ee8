"""The body of each Prefect task: ports in, values out.

    play_episode   Episode ─▶ Episode with turns, closed          Engine, Tokenizer, Sandbox, Store
    update_agent   run, agent, iteration ─▶ Update                Learner, Store
    register       Update ─▶ model version                        ModelRegistry, Store
    trace_episode  Episode, ScoreEntry per action ─▶ trace        Tracker
    (scores: `scoring`)

Every step looks in the store first and returns what is already there, so a step may be
repeated, by a retry or after a crash, and only what is missing is done.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from uuid import UUID

from mappa_core.config import SandboxConfig, TrainConfig
from mappa_core.domain import ids
from mappa_core.domain.errors import OutsideError, StoreError
from mappa_core.domain.records import (
    Action,
    Checkpoint,
    Duty,
    Episode,
    GenerationRequest,
    IterationFigures,
    Limits,
    Observation,
    Outcome,
    Phase,
    PolicyVersion,
    Problem,
    Run,
    Sampling,
    ScoredAction,
    ScoreEntry,
    StopReason,
    ToolResult,
    Turn,
    Update,
)
from mappa_core.domain.trail import files_after
from mappa_core.evaluation.answers import verify
from mappa_core.learning.credit import assign_credit
from mappa_core.ports import (
    Engine,
    Learner,
    ModelRegistry,
    RetiringLearner,
    Sandbox,
    Store,
    TaskSource,
    Tokenizer,
    Tracker,
    Workspaces,
)
from mappa_core.teams.base import Team

Generate = Callable[[Episode, Observation], Awaitable[Action]]
Execute = Callable[[Episode, str], Awaitable[ToolResult]]
Judge = Callable[[Team, Episode], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a team needs that works on files: where they come from and where they stay."""

    tasks: TaskSource
    workspaces: Workspaces


def limits_of(config: SandboxConfig) -> Limits:
    """The sandbox's bounds as the configuration sets them."""
    return Limits(
        wall_seconds=config.wall_seconds,
        cpu_seconds=config.cpu_seconds,
        memory_bytes=config.memory_mib * 2**20,
        processes=config.processes,
        output_bytes=config.output_kib * 2**10,
    )


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
    """The `count` problems of training iteration 1, 2, ...; each pass sees all in a new order."""
    start = (iteration - 1) * count
    chosen: list[Problem] = []
    for position in range(start, start + count):
        epoch, index = divmod(position, len(problems))
        order = list(range(len(problems)))
        Random(ids.derive_seed(seed, "order", epoch)).shuffle(order)  # noqa: S311
        chosen.append(problems[order[index]])
    return tuple(chosen)


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


async def run_code(
    episode: Episode, code: str, *, sandbox: Sandbox, desk: Desk | None, limits: Limits
) -> ToolResult:
    """Run the program of an episode's next turn, among the files that the turns before it left.

    Args:
        episode: With the turns so far.
        code: The program.
        sandbox: Where it runs.
        desk: Where the files are; None where there are none.
        limits: Of the run.

    Raises:
        SandboxError: The sandbox itself failed.
        WorkspaceError: The files are not there or cannot be kept.
    """
    if desk is None:
        return await sandbox.run(code, None, limits)
    files = await asyncio.to_thread(desk.tasks.files, episode.problem)
    folder = await asyncio.to_thread(desk.workspaces.open, episode, files)
    result = await sandbox.run(code, folder, limits)
    await asyncio.to_thread(desk.workspaces.keep, episode, folder)
    return result


def judge_answer(team: Team, episode: Episode) -> Outcome:
    """Compare what the team answered with the right answer."""
    return verify(team.final_answer(episode), episode.problem.answer)


def judge_submission(team: Team, episode: Episode, desk: Desk) -> Outcome:
    """Measure the file that the team submits against the hidden labels.

    Raises:
        WorkspaceError: The file was there and is not any more.
    """
    # Imported here: pandas and scikit-learn take a second, which other teams do not need.
    from mappa_core.evaluation.submissions import judge, parse_key

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

    A failure outside ends this episode as `StopReason.FAILED`, stored with its error; the
    iteration goes on without it. Errors of the store itself are raised.
    """
    episode = await asyncio.to_thread(store.open_episode, episode)
    if episode.stop_reason is not None:
        return episode
    try:
        while (observation := team.next_observation(episode)) is not None:
            turn = await _take_turn(episode, observation, team, generate, execute)
            await asyncio.to_thread(store.record_turn, episode, turn)
            episode = episode.with_turn(turn)
        outcome = await asyncio.to_thread(judge, team, episode)
        closed = episode.closed(team.stop_reason(episode), outcome=outcome)
    except OutsideError as error:
        closed = episode.closed(StopReason.FAILED, error=str(error))
    await asyncio.to_thread(store.close_episode, closed)
    return closed


async def _take_turn(
    episode: Episode, observation: Observation, team: Team, generate: Generate, execute: Execute
) -> Turn:
    action = await generate(episode, observation)
    code = team.code_in(observation.agent, action.text)
    return Turn(
        index=len(episode.turns),
        agent=observation.agent,
        observation=observation,
        action=action,
        tool_result=None if code is None else await execute(episode, code),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """Which update to compute: ids and values only, so that it can cross to a GPU worker."""

    run_id: UUID
    agent: str
    iteration: int
    config: TrainConfig


Correct = Callable[[UpdateRequest, Sequence[ScoredAction]], Sequence[ScoredAction]]
"""Takes a coach's bias off the scores of an update's actions, and writes down that it did."""


def update_agent(
    request: UpdateRequest, *, learner: Learner, store: Store, correct: Correct | None = None
) -> Update:
    """Turn one agent's scored actions of one iteration into new weights, and store all of it.

    Raises:
        LearnerError: The update could not be computed.
        DiskFull: The checkpoint does not fit.
    """
    done = store.update(request.run_id, request.agent, request.iteration)
    if done is not None:
        return done
    policy = policy_at(store, request.run_id, request.agent, request.iteration - 1)
    actions = store.scored_actions(request.run_id, request.agent, request.iteration)
    if correct is not None:
        actions = correct(request, actions)
    algorithm = request.config.algorithm
    reference = None
    if algorithm.kl != "none":
        base = policy_at(store, request.run_id, request.agent, 0)
        reference = learner.logprobs(base, actions)
    credit = assign_credit(actions, algorithm, reference)
    report = learner.update(
        policy,
        credit.samples,
        algorithm,
        total_steps=request.config.rollout.iterations,
        seed=ids.derive_seed(request.config.seed, "update", request.agent, request.iteration),
    )
    score_ids = store.score_ids([action.action_id for action in actions])
    update = Update(
        id=ids.update_id(request.run_id, request.agent, request.iteration),
        run_id=request.run_id,
        agent=request.agent,
        iteration=request.iteration,
        from_policy_id=policy.id,
        to_policy_id=report.policy.id,
        metrics={**credit.metrics, **report.metrics},
        entries=tuple(
            replace(entry, score_id=score_ids.get(entry.action_id)) for entry in credit.entries
        ),
        seconds=report.seconds,
        skipped=report.skipped,
    )
    store.add_update(update, report.policy, report.checkpoint)
    return update


def superseded(store: Store, run_id: UUID, agent: str, keep: int) -> tuple[Checkpoint, ...]:
    """An agent's checkpoints that are still on disk and neither among the last `keep` nor the best.

    The best is the one whose policy sampled the highest mean score; the last one has sampled
    nothing yet.
    """
    there = [
        (policy, checkpoint)
        for policy, checkpoint in store.checkpoints(run_id)
        if policy.agent == agent and Path(checkpoint.directory).is_dir()
    ]
    older = there[:-keep]
    sampled = [(store.update(run_id, agent, policy.step + 1), policy.step) for policy, _ in there]
    scores = {step: made.metrics["score_mean"] for made, step in sampled if made is not None}
    best = max(scores, key=scores.__getitem__, default=None)
    return tuple(checkpoint for policy, checkpoint in older if policy.step != best)


def retire_checkpoints(
    store: Store, learner: Learner, run_id: UUID, agents: Sequence[str], keep: int
) -> int:
    """Remove superseded checkpoints, where the learner can; returns how many."""
    if not isinstance(learner, RetiringLearner):
        return 0
    old = [each for agent in agents for each in superseded(store, run_id, agent, keep)]
    for checkpoint in old:
        learner.retire(checkpoint)
    return len(old)


def policy_at(store: Store, run_id: UUID, agent: str, step: int) -> PolicyVersion:
    """The policy version of one agent after `step` updates.

    Raises:
        StoreError: It is not there although an earlier step of the run should have written it.
    """
    policy = store.policy_version(run_id, agent, step)
    if policy is None:
        raise StoreError(
            f"{agent} has no policy version {step} in run {run_id}: the store and the run "
            "disagree; resume from an earlier iteration or start a new run"
        )
    return policy


def base_policy(run_id: UUID, agent: str, base_model: str) -> PolicyVersion:
    """Step 0 of an agent: the base model as it came."""
    return PolicyVersion(
        id=ids.policy_version_id(run_id, agent, 0),
        run_id=run_id,
        agent=agent,
        step=0,
        base_model=base_model,
        adapter_uri=None,
    )


def registered_name(team: str, agent: str) -> str:
    """The registered model of one agent of one team."""
    return f"mappa-{team}-{agent}"


def register_policies(
    run: Run, iteration: int, *, registry: ModelRegistry, store: Store
) -> tuple[str, ...]:
    """Register each agent's checkpoint of one iteration as its `candidate`; returns `name/version`.

    Raises:
        TrackerError: The registry is unreachable or refused.
    """
    registered: list[str] = []
    for policy, checkpoint in store.checkpoints(run.id):
        if policy.step != iteration:
            continue
        name = registered_name(run.team, policy.agent)
        version = registry.register(
            name,
            policy,
            checkpoint,
            tracker_run_id=run.mlflow_run_id or "",
            tags={
                "mappa.iteration": str(iteration),
                "prefect.flow_run_id": run.prefect_flow_run_id or "",
            },
            alias="candidate",
        )
        store.set_model_version(checkpoint.id, name, version)
        registered.append(f"{name}/{version}")
    return tuple(registered)


def iteration_metrics(
    figures: IterationFigures, updates: Sequence[Update], seconds: float
) -> dict[str, float]:
    """One iteration as metrics `<figure>` and `<agent>/<figure>`; absent where undefined."""
    metrics = {
        "episodes": float(figures.episodes),
        "failed_episodes": float(figures.failed),
        "seconds": seconds,
    }
    if figures.success_rate is not None:
        metrics["success_rate"] = figures.success_rate
    for agent in figures.agents:
        metrics[f"{agent.agent}/actions"] = float(agent.actions)
        metrics[f"{agent.agent}/unscored"] = float(agent.unscored)
        metrics[f"{agent.agent}/tokens"] = float(agent.tokens)
        metrics[f"{agent.agent}/tool_calls"] = float(agent.tool_calls)
        if agent.mean_score is not None:
            metrics[f"{agent.agent}/score"] = agent.mean_score
    for update in updates:
        metrics |= {f"{update.agent}/{name}": value for name, value in update.metrics.items()}
    return metrics


def iteration_table(
    figures: IterationFigures, updates: Sequence[Update]
) -> list[dict[str, str | int | float | None]]:
    """One row per agent, for people."""
    metrics = {update.agent: update.metrics for update in updates}
    return [
        {
            "agent": agent.agent,
            "mean score (0-10)": _rounded(agent.mean_score),
            "actions": agent.actions,
            "unscored": agent.unscored,
            "sampled tokens": agent.tokens,
            "tool calls": agent.tool_calls,
            "loss": _rounded(metrics[agent.agent].get("loss")),
            "gradient norm": _rounded(metrics[agent.agent].get("grad_norm")),
        }
        for agent in figures.agents
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
