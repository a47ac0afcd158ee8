"""A stored run whose coach gives regression three points more for equal work."""

from dataclasses import replace

import pytest

from mappa_core.adapters.store.store import PostgresStore
from mappa_core.domain.records import Outcome, StopReason
from tests.builders import (
    entry,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_turn,
    make_update,
)

BIAS = 3.0
PROBLEMS, EPISODES = 6, 3


def points(problem: int, rollout: int, *, favoured: bool, success: bool) -> float:
    return 3.0 + success + BIAS * favoured + 0.25 * ((problem * 7 + rollout * 3) % 5)


@pytest.fixture
def biased_url(store: PostgresStore, database_url: str) -> str:
    """The address of a database with that run: two iterations, two types, one agent."""
    run = make_run("biased-1")
    store.open_run(run)
    policy = make_policy(run)
    store.add_policy_version(policy)
    for iteration in (1, 2):
        entries = []
        for number in range(PROBLEMS):
            for kind in ("regression", "classification"):
                problem = make_problem(f"{kind} {number}", task_type=kind)
                store.add_problems([problem])
                for rollout in range(EPISODES):
                    episode = make_episode(run, problem, iteration=iteration, rollout_index=rollout)
                    success = (number + rollout + iteration) % 2 == 0
                    score = points(number, rollout, favoured=kind == "regression", success=success)
                    store.open_episode(episode)
                    store.record_turn(episode, make_turn(policy))
                    outcome = Outcome(success=success, answer="5", method="math-verify")
                    store.close_episode(episode.closed(StopReason.ANSWERED, outcome=outcome))
                    scored = make_score(episode, 0, score)
                    store.add_scores([scored])
                    share = 1 / (2 * PROBLEMS * EPISODES)
                    entries.append(
                        replace(entry(episode, 0, score - 5.5, share), score_id=scored.id)
                    )
        store.add_update(*make_update(run, "solver", iteration, entries))
    return database_url
