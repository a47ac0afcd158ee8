"""What the processes of `mappa bench store` do: each records as a training run would."""

import asyncio
import resource
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from uuid import UUID

from mappa_cli.benches.episodes import AGENTS, BenchRun, Material
from mappa_cli.benches.replay import record
from mappa_core.rollout.config import RolloutConfig
from mappa_core.store.store import Store

EPISODES_PER_WRITE = 250
RECORDED = 2_000
"""Actions of each run that are recorded as training does; the rest only makes the tables large."""
PACE_PER_SECOND = 200
"""Turns a run records while two are compared: ten times what a training run makes."""
PACED_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one process wrote."""

    actions: int
    recorded: int
    """Of them, those that were recorded as training does."""
    started: float
    ended: float
    """When these were begun and done, in seconds of the clock that all processes share."""
    peaks_mib: tuple[float, ...]
    """Of memory, after these of each run."""
    episodes: tuple[UUID, ...]
    """Some of all."""


def write_runs(url: str, actions: int, names: Sequence[str]) -> Written:
    """Record the beginning of each run, one after the other, then put the rest there whole."""
    with closing(Store.open(url)) as store:
        material = Material()
        runs = [material.open_run(store, name) for name in names]
        count = actions // len(AGENTS)
        recorded = min(RECORDED, actions) // len(AGENTS)
        started = time.monotonic()
        peaks_mib: list[float] = []
        for run in runs:
            asyncio.run(_recorded(store, material, run, recorded))
            peaks_mib.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        ended = time.monotonic()
        for run in runs:
            _fill(store, material, run, range(recorded, count))
        return Written(
            actions=len(runs) * count * len(AGENTS),
            recorded=len(runs) * recorded * len(AGENTS),
            started=started,
            ended=ended,
            peaks_mib=tuple(peaks_mib),
            episodes=tuple(
                each.id for run in runs for each in material.episodes(run, count - 10, 10)[0]
            ),
        )


async def _recorded(store: Store, material: Material, run: BenchRun, count: int) -> None:
    """Let a run play its first episodes, an iteration's share at a time."""
    at_once = RolloutConfig().concurrency
    for first in range(0, count, at_once):
        episodes, scores = material.episodes(run, first, min(at_once, count - first))
        await record(store, episodes, scores, at_once)


def _fill(store: Store, material: Material, run: BenchRun, numbers: range) -> None:
    for first in numbers[::EPISODES_PER_WRITE]:
        count = min(EPISODES_PER_WRITE, numbers.stop - first)
        store.episodes.add_episodes(*material.episodes(run, first, count))


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
