"""Remembers how fast a run goes, and chooses by it what becomes a task run of the next phase."""

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

from mappa_core.app.config import TrainConfig
from mappa_core.app.recording import Pace, choose, pace_of
from mappa_core.app.services import Services
from mappa_core.core.records.episodes import Phase
from mappa_core.core.records.runs import IterationFigures


class Recording:
    """Chooses for one run, phase by phase, and tells when the choice for training changes."""

    def __init__(self, port: Services, run_id: UUID) -> None:
        self._port, self._run_id = port, run_id
        self._cores = len(os.sched_getaffinity(0))
        self._paces: dict[Phase, Pace] = {}
        self._told: str | None = None
        """What is known to be recorded; empty for episodes until an iteration says more."""

    @asynccontextmanager
    async def watched(self, phase: Phase, iteration: int) -> AsyncGenerator[None]:
        """Remember how long the block took, which plays `iteration` and all that belongs to it."""
        before, started = await self._figures(phase, iteration), time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        pace = pace_of(before, await self._figures(phase, iteration), seconds)
        # A resumed run walks through what is stored in no time, which is no pace.
        if pace.episodes:
            self._paces[phase] = pace

    async def _figures(self, phase: Phase, iteration: int) -> IterationFigures:
        figures = self._port.store.figures
        return await asyncio.to_thread(
            figures.get_iteration_figures, self._run_id, phase, iteration
        )

    def chosen(self, config: TrainConfig, phase: Phase) -> TrainConfig:
        """The configuration with what becomes a task run of the next `phase`."""
        # Where there is no other: held-out episodes, neither scored nor learned from, are faster.
        own = self._paces.get(phase)
        pace, of_faster = own or self._paces.get("held_out"), own is None
        choice = choose(config, self._port.team, pace, self._cores, of_faster=of_faster)
        asked = config.rollout.granularity == "auto" and phase == "train"
        known = choice.granularity if own or choice.granularity == "action" else ""
        if asked and known != self._told:
            self._told = known
            self._port.progress.on_notice(
                f"Prefect records every {choice.granularity} from here on: {choice.because}"
            )
        rollout = config.rollout.model_copy(update={"granularity": choice.granularity})
        return config.model_copy(update={"rollout": rollout})
