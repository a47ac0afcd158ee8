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

BUSY = AgentFigures(agent="solver", actions=20, unscored=0, mean_score=1.0, tokens=9, tool_calls=0)


@dataclass
class Notices(LogProgress):
    """Remembers what it was told."""

    told: list[str] = field(default_factory=list[str])

    def on_notice(self, message: str) -> None:
        self.told.append(message)


def figures(_: object, phase: Phase, iteration: int) -> IterationFigures:
    """Of the first held-out phase many actions; of training none, as where all were stored."""
    agents = (BUSY,) if phase == "held_out" else ()
    return IterationFigures(
        phase=phase, iteration=iteration, episodes=2, failed=0, successes=1, agents=agents
    )


async def chosen(config: TrainConfig) -> tuple[list[str], list[str]]:
    """What becomes a task run before anything was played, after a fast phase, after free ones."""
    notices, store = (
        Notices(),
        SimpleNamespace(figures=SimpleNamespace(get_iteration_figures=figures)),
    )
    port = SimpleNamespace(team=load_team("mathchat", "small-1"), progress=notices, store=store)
    recording, found = Recording(cast(Services, port), uuid4()), list[str]()
    phases: tuple[Phase, ...] = ("held_out", "train", "train")
    for iteration, phase in enumerate(phases):
        found.append(recording.chosen(config, "train").rollout.granularity)
        async with recording.watched(phase, iteration):
            time.sleep(0.01)
    found.append(recording.chosen(config, "train").rollout.granularity)
    return found, notices.told


def test_the_choice_follows_the_pace_and_is_told_when_it_changes() -> None:
    found, told = asyncio.run(chosen(TrainConfig()))
    assert found == ["episode", "episode", "action", "action"]
    assert [each.split(":")[0] for each in told] == [
        "Prefect records every episode from here on",
        "Prefect records every action from here on",
    ]


def test_what_was_asked_for_by_name_stays_and_is_not_told() -> None:
    config = TrainConfig(rollout=RolloutConfig(granularity="episode"))
    assert asyncio.run(chosen(config)) == (["episode"] * 4, [])
