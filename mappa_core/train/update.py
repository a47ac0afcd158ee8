"""Turns an agent's stored scores into new weights, and stores what came of it.

scored actions ─▶ less a coach's bias ─▶ `credit` ─▶ samples ─▶ a learner ─▶ update, checkpoint
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from mappa_core.cluster.storage import Storage
from mappa_core.core import ids
from mappa_core.core.errors import LearnerError, StoreError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.updates import Update, UpdateReport
from mappa_core.store.store import Store
from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.credit import Credit, assign_credit
from mappa_core.train.protocols import Learner
from mappa_core.train.retention import retire_checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRequest:
    """Says which update to compute, and how; a learner is given with it."""

    run_id: UUID
    agent: str
    iteration: int
    """1, 2, ...; its episodes are played and scored."""
    algorithm: AlgorithmConfig
    total_steps: int
    """Updates of the whole run, for the learning-rate schedule."""
    seed: int
    """The run's; an update derives its own from it."""
    keep_checkpoints: int | None = None
    """How many of the agent's last ones stay on disk; None keeps all."""
    async_level: int = 0
    """`rollout.async_level`, how many updates old the weights are that play."""


Correct = Callable[[UpdateRequest, Sequence[ScoredAction]], Sequence[ScoredAction]]
"""Takes a coach's bias off the scores of an update's actions, and writes down that it did."""


def update_agent(
    request: UpdateRequest,
    *,
    learner: Learner,
    store: Store,
    correct: Correct | None = None,
    storage: Storage | None = None,
) -> Update:
    """Turn one agent's scored actions of one iteration into new weights, and store all of it.

    An update that is stored already is returned as it is. Older checkpoints make room: all but
    this iteration's are registered by now, so what is removed has its copy.

    Raises:
        LearnerError: The update could not be computed.
        DiskFull: The checkpoint does not fit.
        ClusterError: Those that go cannot be removed from `storage`.
    """
    run_id, agent, iteration = request.run_id, request.agent, request.iteration
    identity = ids.update_id(run_id, agent, iteration)
    # A worker that was taken for dead may be at it: two would write one checkpoint.
    with store.lock(identity):
        done = store.updates.get_update(run_id, agent, iteration)
        if done is None:
            policy = policy_at(store, run_id, agent, iteration - 1)
            team = _scored(request, store, correct)
            actions = tuple(action for action in team if action.agent == agent)
            credit = _credit(request, policy, actions, team, learner, store)
            report = learner.update(
                policy,
                credit.samples,
                request.algorithm,
                total_steps=request.total_steps,
                seed=ids.derive_seed(request.seed, "update", agent, iteration),
            )
            done = _update(request, policy, actions, credit, report)
            store.updates.add_update(done, report.policy, report.checkpoint)
    gone = retire_checkpoints(store, run_id, agent, request.keep_checkpoints, request.async_level)
    if storage is not None:
        for directory in gone:
            storage.remove(directory)
    return done


def _scored(
    request: UpdateRequest, store: Store, correct: Correct | None
) -> Sequence[ScoredAction]:
    """The iteration's actions of the agent, or of all agents where they share their credit."""
    agent = None if request.algorithm.credit == "team" else request.agent
    actions = store.scores.list_scored_actions(request.run_id, agent, request.iteration)
    return actions if correct is None else correct(request, actions)


def _credit(
    request: UpdateRequest,
    policy: PolicyVersion,
    actions: Sequence[ScoredAction],
    team: Sequence[ScoredAction],
    learner: Learner,
    store: Store,
) -> Credit:
    algorithm, reference, before = request.algorithm, None, None
    if algorithm.kl != "none":
        base = policy_at(store, request.run_id, request.agent, 0)
        reference = learner.logprobs(base, actions)
    if algorithm.kl == "k1_reward":
        before = learner.logprobs(policy, actions)
    return assign_credit(actions, algorithm, reference, before, team)


def _update(
    request: UpdateRequest,
    policy: PolicyVersion,
    actions: Sequence[ScoredAction],
    credit: Credit,
    report: UpdateReport,
) -> Update:
    # Updates between the weights that sampled and those that learn.
    staleness = max((policy.step - action.policy_step for action in actions), default=0)
    return Update(
        id=ids.update_id(request.run_id, request.agent, request.iteration),
        run_id=request.run_id,
        agent=request.agent,
        iteration=request.iteration,
        from_policy_id=policy.id,
        to_policy_id=report.policy.id,
        metrics={**credit.metrics, **report.metrics, "staleness": float(staleness)},
        entries=credit.entries,
        seconds=report.seconds,
        skipped=report.skipped,
    )


def policy_at(store: Store, run_id: UUID, agent: str, step: int) -> PolicyVersion:
    """Find the policy version of one agent after `step` updates.

    Raises:
        StoreError: It is not there although an earlier step of the run should have written it.
    """
    policy = store.policies.get_policy_version(run_id, agent, step)
    if policy is None:
        raise StoreError(
            f"{agent} has no policy version {step} in run {run_id}: the store and the run "
            "disagree; resume from an earlier iteration or start a new run"
        )
    return policy


def check_visible(store: Store, run_id: UUID, agent: str, step: int) -> None:
    """Check that weights that another machine may have written can be read on this one.

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
    """Make step 0 of an agent: the base model as it came."""
    return PolicyVersion(
        id=ids.policy_version_id(run_id, agent, 0),
        run_id=run_id,
        agent=agent,
        step=0,
        base_model=base_model,
        adapter_uri=None,
    )
