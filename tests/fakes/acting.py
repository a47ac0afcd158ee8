"""Agents whose actions a test writes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mappa_core.core.errors import SandboxError
from mappa_core.core.records.episodes import Action, Episode, Observation
from mappa_core.core.records.tools import Limits, ToolResult
from mappa_core.rollout.actions import ToolRunner


class NoPython:
    """A sandbox in which no program is expected."""

    tier = "none"

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        raise SandboxError("no program was expected")

    async def close(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class ScriptedRunner(ToolRunner):
    """Takes actions from `act`, and really does what they ask for."""

    act: Callable[[Episode, Observation], Action]

    async def generate(self, episode: Episode, observation: Observation) -> Action:
        return self.act(episode, observation)
