"""A stored run whose coach gives regression three points more for equal work."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from mappa_core.audit.records import Anchor, AnchorScore, Change, ExperimentScore, HumanLabel
from mappa_core.audit.store import AuditStore
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Outcome, StopReason, Turn
from mappa_core.core.records.scores import CoachIdentity, Unscored
from mappa_core.store.store import Store
from tests.builders import (
    RULE_COACH,
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


def record(store: Store, episode: Episode, turns: Sequence[Turn], *, success: bool) -> Episode:
    """Store an episode from its opening to its end."""
    store.episodes.open_episode(episode)
    for turn in turns:
        store.episodes.add_turn(episode, turn)
        episode = episode.with_turn(turn)
    outcome = Outcome(success=success, answer="5", method="math-verify")
    closed = episode.closed(StopReason.ANSWERED, outcome=outcome)
    store.episodes.close_episode(closed)
    return closed


@pytest.fixture
def biased_url(store: Store, database_url: str) -> str:
    """The address of a database with that run: two iterations, two types, one agent."""
    run = make_run("biased-1")
    store.runs.add_run(run)
    policy = make_policy(run)
    store.policies.add_policy_version(policy)
    for iteration in (1, 2):
        entries = []
        for number in range(PROBLEMS):
            for kind in ("regression", "classification"):
                problem = make_problem(f"{kind} {number}", task_type=kind)
                problem = replace(problem, level=1 + number // 4)
                store.episodes.add_problems([problem])
                for rollout in range(EPISODES):
                    episode = make_episode(run, problem, iteration=iteration, rollout_index=rollout)
                    # Every other problem is easy: one of six episodes goes the other way.
                    success = (number % 2 == 0) != (rollout == 0 and iteration == number % 3)
                    score = points(number, rollout, favoured=kind == "regression", success=success)
                    record(store, episode, [make_turn(policy)], success=success)
                    scored = make_score(episode, 0, score)
                    store.scores.add_scores([scored])
                    share = 1 / (2 * PROBLEMS * EPISODES)
                    entries.append(
                        replace(entry(episode, 0, score - 5.5, share), score_id=scored.id)
                    )
        store.updates.add_update(*make_update(run, "solver", iteration, entries))
    return database_url


SECOND = CoachIdentity(
    coach="gemini", model="m", model_version="m-1", rubric_version="r-1", rubric_sha256="cd" * 32
)


@pytest.fixture
def audit(biased_url: str) -> Iterator[AuditStore]:
    opened = AuditStore.open(biased_url)
    yield opened
    opened.close()


@pytest.fixture
def rich_url(biased_url: str, store: Store, audit: AuditStore) -> str:
    """The same run with everything an audit can speak of: repeats, a second coach, people,
    anchors that were scored again, an experiment, and an action that nobody could score."""
    run = make_run("biased-1")
    episodes = [
        store.episodes.get_episode(str(one.id)) for one in store.episodes.list_episodes(run.id)
    ]
    for number, episode in enumerate(episodes):
        (known,) = store.scores.scores_of_episode(episode.id)
        assert not isinstance(known.score, Unscored)
        moved = min(known.score.value + (number % 3 - 1) / 2, 10.0)
        other = 10.0 - known.score.value
        repeat = make_score(episode, 0, moved, repeat_index=1, trained=False)
        second = make_score(episode, 0, other, identity=SECOND, trained=False)
        store.scores.add_scores([repeat, second])
    audit.add_labels(
        [
            HumanLabel(
                action_id=ids.action_id(episode.id, 0),
                labeller="ada",
                score=float(number % 7) + 2,
                picked="random" if number % 2 else "contested",
            )
            for number, episode in enumerate(episodes[:20])
        ]
    )
    lost = make_episode(run, episodes[0].problem, iteration=2, rollout_index=9)
    record(store, lost, [make_turn(make_policy(run))], success=False)
    store.scores.add_scores([make_score(lost, 0, Unscored(reason="unparsable", detail="?"))])
    anchors = [
        Anchor(
            id=ids.content_id("anchor", number),
            run_id=run.id,
            action_id=ids.action_id(episode.id, 0),
            episode_id=episode.id,
            turn_index=0,
        )
        for number, episode in enumerate(episodes[:4])
    ]
    audit.add(anchors)
    audit.add(
        [
            AnchorScore(
                anchor_id=anchor.id,
                iteration=iteration,
                repeat_index=repeat,
                score=4.0 + repeat / 2,
                unscored_reason=None,
                coach=RULE_COACH.coach,
                model_version="2" if iteration == 2 else "1",
                rubric_sha256=RULE_COACH.rubric_sha256,
            )
            for anchor in anchors
            for iteration, repeat in ((0, 0), (0, 1), (1, 0), (2, 0))
        ]
    )
    audit.add_experiment(
        [asked for number, episode in enumerate(episodes) for asked in experiment(number, episode)]
    )
    return biased_url


def experiment(number: int, episode: Episode) -> Iterator[ExperimentScore]:
    """What the coach says of an action again: it favours what is called regression, and every sixth
    answer is missing."""
    own = episode.problem.task_type
    other = "classification" if episode.problem.task_type == "regression" else "regression"
    asked: tuple[tuple[Change, str], ...] = (
        ("as it was", ""),
        ("again", ""),
        ("task type", other),
        ("agent name", "solver_2"),
        ("rubric order", ""),
        ("padded", ""),
        ("trimmed", ""),
        ("outcome hidden", ""),
        ("told right", ""),
        ("told wrong", ""),
    )
    for place, (change, put) in enumerate(asked):
        lost, unseen = (number + place) % 6 == 5, change == "outcome hidden"
        told = put if change == "task type" else own
        points = (8.0 if told == "regression" else 1.0) + (number * 5 + place) % 4 / 2
        yield ExperimentScore(
            action_id=ids.action_id(episode.id, 0),
            change=change,
            put=put,
            coach=RULE_COACH.coach,
            model=RULE_COACH.model,
            model_version=RULE_COACH.model_version,
            rubric_sha256=RULE_COACH.rubric_sha256,
            unseen=unseen,
            score=None if lost or unseen else points,
            unscored_reason="timeout" if lost and not unseen else None,
        )
