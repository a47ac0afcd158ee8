"""The store's bench records by the calls that a training run makes, one turn and one score each."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mappa_cli.benches import store_writers
from mappa_cli.benches.episodes import AGENTS, Material
from mappa_cli.benches.replay import record
from mappa_core.core.records.episodes import Episode, StopReason, Turn
from mappa_core.core.records.scores import CoachScore
from mappa_core.store.episodes import Episodes
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


def test_what_is_timed_is_recorded_as_training_does_and_the_rest_is_put_there_later(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = 2 * len(AGENTS)
    monkeypatch.setattr(store_writers, "RECORDED", recorded)
    added: list[float] = []
    put = Episodes.add_episodes

    def add_episodes(self: Episodes, *whole: Any) -> None:
        added.append(time.monotonic())
        put(self, *whole)

    monkeypatch.setattr(Episodes, "add_episodes", add_episodes)
    calls, add_turns = Counter[str](), Episodes.add_turns

    def counted_turns(self: Episodes, turns: Sequence[tuple[Episode, Turn]]) -> None:
        calls["turns"] += len(turns)
        add_turns(self, turns)

    monkeypatch.setattr(Episodes, "add_turns", counted_turns)
    actions = 20 * len(AGENTS)
    written = store_writers.write_runs(database_url, actions, ["bench-1"])
    assert (written.actions, written.recorded) == (actions, recorded)
    assert calls["turns"] == recorded
    assert added
    assert min(added) >= written.ended
