"""A small run, worked by hand, on a database of its own."""

from dataclasses import replace

import pytest

from mappa_core.core.records.episodes import Outcome, StopReason
from mappa_core.core.records.scores import Unscored
from mappa_core.store.store import Store
from tests.builders import (
    entry,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_tool_result,
    make_turn,
    make_update,
)

SCORES = {"What is 2 + 3?": (9.0, 7.0), "What is 2 * 3?": (2.0, None)}
TASK_TYPES = {"What is 2 + 3?": "addition", "What is 2 * 3?": "multiplication"}


def fill(store: Store) -> None:
    """Two problems, two episodes each, one action each, scored and learned from.

    Additions score 9 (right) and 7 (wrong); multiplications 2 (wrong) and, once, nothing (right).
    """
    run = make_run()
    solver = make_policy(run)
    store.runs.add_run(run)
    store.policies.add_policy_version(solver)
    entries = []
    problems = [make_problem(text, task_type=kind) for text, kind in TASK_TYPES.items()]
    store.runs.add_manifest(run.id, "train", problems)
    for problem in problems:
        scores = SCORES[problem.statement]
        for rollout_index, score in enumerate(scores):
            episode = make_episode(run, problem, rollout_index=rollout_index)
            store.episodes.open_episode(episode)
            store.episodes.add_turn(episode, make_turn(solver, tool_result=make_tool_result()))
            success = score in (9.0, None)
            outcome = Outcome(success=success, answer="5", method="math-verify")
            store.episodes.close_episode(episode.closed(StopReason.ANSWERED, outcome=outcome))
            given = Unscored(reason="timeout", detail="30 s") if score is None else score
            scored = make_score(episode, 0, given)
            again = make_score(episode, 0, 5.0, repeat_index=1, trained=False)
            store.scores.add_scores([scored, again])
            advantage = None if score is None else (score - 6.0) / 4
            weight = 0.0 if score is None else 0.25 * (1 + (score == 2.0))
            entries.append(replace(entry(episode, 0, advantage, weight), score_id=scored.id))
    update, policy, checkpoint = make_update(run, "solver", 1, entries)
    store.updates.add_update(update, policy, checkpoint)
    store.policies.set_model_version(checkpoint.id, "mappa-mathchat-verifier", "1")


@pytest.fixture
def filled_url(store: Store, database_url: str) -> str:
    """The address of a database that holds the run of `fill`."""
    fill(store)
    return database_url
