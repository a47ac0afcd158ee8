"""What an agent acts with: its engine, its sandbox, its tools and its problem."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from mappa_core.core.records.episodes import (
    Action,
    Completion,
    Episode,
    GenerationRequest,
    Observation,
    PolicyVersion,
    Problem,
)
from mappa_core.core.records.tools import Limits, Tool, ToolCall, ToolRequest, ToolResult


class Engine(Protocol):
    """Samples actions from the agents' current weights."""

    async def start(self) -> None:
        """Bring the engine up.

        Raises:
            EngineError: It does not start; the message names the log.
        """
        ...

    async def load(self, policy: PolicyVersion) -> None:
        """Serve `policy` for its agent from now on, without a restart.

        Raises:
            EngineError: The weights cannot be loaded.
        """
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action from the loaded version of the request's agent.

        The same request gives the same tokens, but for ties that the rounding of a batch decides.
        A dead engine is restarted, its policies are loaded again and the request is repeated.

        Raises:
            EngineError: It cannot be brought back, or serves another version than asked for.
        """
        ...

    async def close(self) -> None:
        """Stop it; safe to call twice."""
        ...


@runtime_checkable
class SleepingEngine(Protocol):
    """An engine that can leave a GPU to the learner, beside `Engine`. Both raise `EngineError`."""

    async def sleep(self) -> None:
        """Give the GPU's memory up; nothing may be asked of it until `wake`."""
        ...

    async def wake(self) -> None:
        """Take the memory again, with the policies it served."""
        ...


@runtime_checkable
class AheadEngine(Protocol):
    """An engine that says whether it takes new weights beside other work, beside `Engine`."""

    @property
    def loads_ahead(self) -> bool:
        """Whether `load` may be called while agents learn, or others of its agents sample.

        Not of what sleeps, or reads models here.
        """
        ...


class Sandbox(Protocol):
    """Runs model-written Python where it can do no harm."""

    @property
    def tier(self) -> str:
        """Which isolation holds, e.g. `bubblewrap+cgroup+seccomp`."""
        ...

    async def run(self, code: str, workspace: Path | None, limits: Limits) -> ToolResult:
        """Run `code` as `main.py` in `workspace`, None for an empty one; a failure is data.

        Raises:
            SandboxError: The sandbox itself failed.
        """
        ...

    async def close(self) -> None:
        """Leave nothing behind; safe to call twice."""
        ...


class Toolbox(Protocol):
    """Tools beyond Python, on servers of their own."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All that the servers offer, as they said when they were opened."""
        ...

    async def call(self, call: ToolCall, limits: Limits) -> ToolResult:
        """Make `call`; one that fails, or takes too long, is data.

        Raises:
            ToolServerError: The server died; the next call opens it again.
        """
        ...


class ProblemSource(Protocol):
    """Where problems come from; train and held-out sets are disjoint by content."""

    def train(self) -> tuple[Problem, ...]:
        """Problems to learn from, in a fixed order."""
        ...

    def held_out(self) -> tuple[Problem, ...]:
        """Problems to measure on, in a fixed order."""
        ...


@runtime_checkable
class TaskSource(ProblemSource, Protocol):
    """Problems that come with files and are graded by hidden labels."""

    def files(self, problem: Problem) -> Mapping[str, bytes]:
        """What the agents find in their workspace, by name."""
        ...

    def labels(self, problem: Problem) -> bytes:
        """CSV of the right predictions; never given to agents, sandboxes or coaches."""
        ...


class ActionRunner(Protocol):
    """Samples the actions of episodes and does what they ask for."""

    async def generate(self, episode: Episode, observation: Observation) -> Action:
        """Sample the next action of an episode.

        Raises:
            EngineError: The engine died and did not come back.
        """
        ...

    async def execute(self, episode: Episode, request: ToolRequest) -> ToolResult:
        """Do what an episode's next turn asks for, among the files that the turns before it left.

        Raises:
            SandboxError: The sandbox itself failed.
            ToolServerError: A tool's server died.
            WorkspaceError: The files are not there or cannot be kept.
        """
        ...
