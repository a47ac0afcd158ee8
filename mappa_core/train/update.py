"""From stored scores to new weights, and from those to a registered model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from mappa_core.app.config import TrainConfig
from mappa_core.core import ids
from mappa_core.core.errors import LearnerError, StoreError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import Checkpoint, Update
from mappa_core.store.protocols import Store
from mappa_core.tracking.protocols import ModelRegistry
from mappa_core.train.credit import assign_credit
from mappa_core.train.protocols import Learner, RetiringLearner


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
        metrics={
            **credit.metrics,
            **report.metrics,
            "staleness": float(_staleness(policy, actions)),
        },
        entries=tuple(
            replace(entry, score_id=score_ids.get(entry.action_id)) for entry in credit.entries
        ),
        seconds=report.seconds,
        skipped=report.skipped,
    )
    store.add_update(update, report.policy, report.checkpoint)
    return update


def _staleness(policy: PolicyVersion, actions: Sequence[ScoredAction]) -> int:
    """By how many updates the weights that sampled were older than those that learn."""
    return max((policy.step - action.policy_step for action in actions), default=0)


def superseded(
    store: Store, run_id: UUID, agent: str, config: TrainConfig
) -> tuple[Checkpoint, ...]:
    """An agent's checkpoints on disk that nobody goes on from, and that are not the best.

    The last to be kept stay, and those that a fork goes on from. The best is the one whose policy
    sampled the highest mean score; the last ones have sampled nothing that was learnt from yet.
    """
    there = [
        (policy, checkpoint)
        for policy, checkpoint in store.checkpoints(run_id)
        if policy.agent == agent and Path(checkpoint.directory).is_dir()
    ]
    # One step off, an older one is being played with, and an engine that dies loads it again.
    kept = (config.learner.keep_checkpoints or len(there)) + config.rollout.async_level
    older = there[:-kept]
    lag = 1 + config.rollout.async_level
    sampled = [(store.update(run_id, agent, policy.step + lag), policy.step) for policy, _ in there]
    scores = {step: made.metrics["score_mean"] for made, step in sampled if made is not None}
    best = max(scores, key=scores.__getitem__, default=None)
    lent = store.lent(run_id)
    return tuple(
        checkpoint
        for policy, checkpoint in older
        if policy.step != best and checkpoint.directory not in lent
    )


def retire_checkpoints(
    store: Store, learner: Learner, run_id: UUID, agents: Sequence[str], config: TrainConfig
) -> int:
    """Remove superseded checkpoints, where the learner can; returns how many."""
    if config.learner.keep_checkpoints is None or not isinstance(learner, RetiringLearner):
        return 0
    old = [each for agent in agents for each in superseded(store, run_id, agent, config)]
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


def check_visible(store: Store, run_id: UUID, agent: str, step: int) -> None:
    """Look whether weights that another machine may have written can be read on this one.

    Raises:
        LearnerError: Their directory is not here.
        StoreError: The store has no such policy version.
    """
    policy = policy_at(store, run_id, agent, step)
    if policy.adapter_uri is not None and not Path(policy.adapter_uri).is_dir():
        raise LearnerError(
            f"the checkpoint {policy.adapter_uri} cannot be seen from here: a training run and the "
            "workers of its updates share MAPPA_HOME/checkpoints, at the same path"
        )


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
    """Register each agent's checkpoint of one iteration as its `candidate`.

    Returns:
        `name/version` of what was not registered before.

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
        if store.set_model_version(checkpoint.id, name, version):
            registered.append(f"{name}/{version}")
    return tuple(registered)
