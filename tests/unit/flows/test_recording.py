"""A run remembers how fast it goes, and says once what Prefect records of it."""

import asyncio
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast
from uuid import uuid4

from flows.recording import Recording
from mappa_core.app.config import TrainConfig
from mappa_core.app.progress import LogProgress
from mappa_core.app.services import Services
from mappa_core.core.records.episodes import Phase
from mappa_core.core.records.runs import AgentFigures, IterationFigures
from mappa_core.rollout.config import RolloutConfig
from mappa_core.rollout.teams import load_team

BUSY = AgentFigures(
    agent="solver", actions=20, scored=20, unscored=0, mean_score=1.0, tokens=9, tool_calls=0
)


@dataclass
class Notices(LogProgress):
    """Remembers what it was told."""

    told: list[str] = field(default_factory=list[str])

    def on_notice(self, message: str) -> None:
        self.told.append(message)


@dataclass
class Played:
    """The figures of a store in which phases are played, or were."""

    rows: dict[tuple[Phase, int], IterationFigures] = field(
        default_factory=dict[tuple[Phase, int], IterationFigures]
    )

    def get_iteration_figures(self, _: object, phase: Phase, iteration: int) -> IterationFigures:
        nothing = IterationFigures(
            phase=phase, iteration=iteration, episodes=0, failed=0, successes=0, agents=()
        )
        return self.rows.get((phase, iteration), nothing)

    def play(self, phase: Phase, iteration: int, *agents: AgentFigures) -> None:
        self.rows[phase, iteration] = IterationFigures(
            phase=phase, iteration=iteration, episodes=2, failed=0, successes=1, agents=agents
        )


def opened(played: Played) -> tuple[Recording, list[str]]:
    """What chooses for a run of this store, and what it tells."""
    notices, store = Notices(), SimpleNamespace(figures=played)
    port = SimpleNamespace(team=load_team("mathchat", "small-1"), progress=notices, store=store)
    return Recording(cast(Services, port), uuid4()), notices.told


async def chosen(config: TrainConfig) -> tuple[list[str], list[str]]:
    """What becomes a task run before anything was played, after a fast phase, after free ones."""
    played, found = Played(), list[str]()
    recording, told = opened(played)
    # Many actions of the first held-out phase, of training none.
    for iteration, (phase, agents) in enumerate(PHASES):
        found.append(recording.chosen(config, "train").rollout.granularity)
        async with recording.watched(phase, iteration):
            played.play(phase, iteration, *agents)
            time.sleep(0.01)
    found.append(recording.chosen(config, "train").rollout.granularity)
    return found, told


PHASES: tuple[tuple[Phase, tuple[AgentFigures, ...]], ...] = (
    ("held_out", (BUSY,)),
    ("train", ()),
    ("train", ()),
)


async def resumed(config: TrainConfig) -> list[str]:
    """What becomes a task run after a slow phase, and after one that was stored before it."""
    played, found = Played(), list[str]()
    played.play("train", 2, BUSY)
    recording, _ = opened(played)
    async with recording.watched("train", 1):
        played.play("train", 1)
    found.append(recording.chosen(config, "train").rollout.granularity)
    async with recording.watched("train", 2):
        pass
    return [*found, recording.chosen(config, "train").rollout.granularity]


def test_what_a_resumed_run_walks_through_is_no_pace() -> None:
    assert asyncio.run(resumed(TrainConfig())) == ["action", "action"]


def test_the_choice_follows_the_pace_and_is_told_when_it_changes() -> None:
    found, told = asyncio.run(chosen(TrainConfig()))
    assert found == ["episode", "episode", "action", "action"]
    assert [each.split(":")[0] for each in told] == [
        "Prefect records every episode from here on",
        "Prefect records every action from here on",
    ]


async def told_after_held_out() -> tuple[list[str], list[str]]:
    """What is told after fast held-out episodes, and after as fast an iteration."""
    played = Played()
    recording, told = opened(played)
    phases: tuple[Phase, ...] = ("held_out", "train")
    for phase in phases:
        async with recording.watched(phase, 1):
            played.play(phase, 1, BUSY)
        recording.chosen(TrainConfig(), "train")
    choice = recording.chosen(TrainConfig(), "train").rollout.granularity
    return told, [choice]


def test_held_out_episodes_that_are_too_fast_are_no_forecast_of_training() -> None:
    told, choice = asyncio.run(told_after_held_out())
    first, then = told
    assert choice == ["episode"]
    assert "recording actions takes" not in first
    assert "shows after an iteration" in first
    assert "above 5%" in then


def test_what_was_asked_for_by_name_stays_and_is_not_told() -> None:
    config = TrainConfig(rollout=RolloutConfig(granularity="episode"))
    assert asyncio.run(chosen(config)) == (["episode"] * 4, [])
