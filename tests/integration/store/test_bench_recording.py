"""The store's bench records by the calls that a training run makes, one turn and one score each."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from mappa_cli.benches.episodes import AGENTS, Material
from mappa_cli.benches.replay import record
from mappa_core.core.records.episodes import StopReason
from mappa_core.core.records.scores import CoachScore
from mappa_core.store.store import Store

EPISODES = 3
"""The first of them is right."""


def counted(calls: Counter[str], repository: object, name: str) -> Callable[..., object]:
    """The method of that name, with what it is asked for counted."""
    method = getattr(repository, name)

    def call(asked: Sequence[object]) -> object:
        calls[name] += len(asked)
        return method(asked)

    return call


def test_what_is_recorded_is_what_training_leaves(store: Store) -> None:
    material = Material()
    run = material.open_run(store, "bench")
    episodes, scores = material.episodes(run, 0, EPISODES)
    asyncio.run(record(store, episodes, scores, at_once=2))
    for number, whole in enumerate(episodes):
        stored = store.episodes.get_episode(str(whole.id))
        assert stored.turns == whole.turns
        right = number == 0
        assert stored.stop_reason is (StopReason.ANSWERED if right else StopReason.MAX_TURNS)
        assert stored.outcome is not None
        assert stored.outcome.success is right
        given = store.scores.scores_of_episode(whole.id)
        wanted = scores[number * len(AGENTS) : (number + 1) * len(AGENTS)]
        for entry, want, turn in zip(given, wanted, whole.turns, strict=True):
            assert isinstance(entry.score, CoachScore)
            assert entry.score.request is not None
            assert entry.score.request.prompt == turn.action.text
            assert replace(entry, score=replace(entry.score, request=None)) == want


def test_every_turn_and_every_score_waits_for_a_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Counter[str]()
    for name in ("open_episodes", "add_turns", "close_episodes", "add_episodes"):
        monkeypatch.setattr(store.episodes, name, counted(calls, store.episodes, name))
    monkeypatch.setattr(store.scores, "add_scores", counted(calls, store.scores, "add_scores"))
    material = Material()
    run = material.open_run(store, "bench")
    asyncio.run(record(store, *material.episodes(run, 0, EPISODES), at_once=2))
    actions = EPISODES * len(AGENTS)
    assert calls == {
        "open_episodes": EPISODES,
        "add_turns": actions,
        "close_episodes": EPISODES,
        "add_scores": actions,
    }
