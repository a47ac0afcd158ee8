"""What the processes of `mappa bench store` do: each records as a training run would."""

import resource
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from uuid import UUID

from mappa_cli.benches.episodes import AGENTS, Material
from mappa_core.store.store import Store

EPISODES_PER_WRITE = 250
PACE_PER_SECOND = 200
"""Turns a run records while two are compared: ten times what a training run makes."""
PACED_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one process wrote."""

    actions: int
    episodes: tuple[UUID, ...]
    """Some of them."""
    started: float
    ended: float
    """In seconds of the machine's monotonic clock, which all its processes share."""
    peaks_mib: tuple[float, ...]
    """Of memory, after each run."""


def write_runs(url: str, actions: int, names: Sequence[str]) -> Written:
    """Write runs of so many actions each, one after the other; making records and ids counts."""
    with closing(Store.open(url)) as store:
        material = Material()
        started = time.monotonic()
        episodes: list[UUID] = []
        peaks_mib: list[float] = []
        for name in names:
            episodes += _write_run(store, material, actions // len(AGENTS), name)
            peaks_mib.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return Written(
            actions=len(names) * (actions // len(AGENTS)) * len(AGENTS),
            episodes=tuple(episodes),
            started=started,
            ended=time.monotonic(),
            peaks_mib=tuple(peaks_mib),
        )


def _write_run(store: Store, material: Material, count: int, name: str) -> list[UUID]:
    run = material.open_run(store, name)
    last: list[UUID] = []
    for first in range(0, count, EPISODES_PER_WRITE):
        episodes, scores = material.episodes(run, first, min(EPISODES_PER_WRITE, count - first))
        store.episodes.add_episodes(episodes, scores)
        last = [episode.id for episode in episodes[-10:]]
    return last


def record_at_pace(url: str, name: str) -> list[float]:
    """Seconds that each turn took, recorded one by one at the pace of a busy run."""
    with closing(Store.open(url)) as store:
        material = Material()
        run = material.open_run(store, name)
        played, _ = material.episodes(run, 0, int(PACE_PER_SECOND * PACED_SECONDS) // len(AGENTS))
        for episode in played:
            store.episodes.open_episode(replace(episode, turns=(), stop_reason=None, outcome=None))
        seconds: list[float] = []
        due = time.perf_counter()
        for episode in played:
            for turn in episode.turns:
                time.sleep(max(0.0, due - time.perf_counter()))
                due += 1 / PACE_PER_SECOND
                started = time.perf_counter()
                store.episodes.add_turn(episode, turn)
                seconds.append(time.perf_counter() - started)
        return seconds
