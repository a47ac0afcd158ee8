r"""Single: one agent with Python, in up to three turns.

    problem ──▶ Solver ──program──▶ output ──▶ Solver ──▶ ... ──▶ \boxed{answer}

It acts again as long as it boxes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.tools import ToolRequest
from mappa_core.core.text import last_boxed
from mappa_core.rollout.teams.base import PYTHON, AgentSpec, Team
from mappa_core.rollout.teams.mathchat import output_text

SOLVER = AgentSpec(
    name="solver",
    title="Solver",
    max_turns=3,
    sees=("problem", "solver.output"),
    tools=(PYTHON,),
)


@dataclass(frozen=True, kw_only=True)
class Single(Team):
    """The team of one, with one of its prompt sets."""

    name: str = "single"
    agents: tuple[AgentSpec, ...] = (SOLVER,)
    rules: str | None = "single"
    rubrics: str = "single"

    def hands_over(self, turn: Turn, episode: Episode) -> bool:  # noqa: ARG002
        """Whether it has boxed an answer."""
        return bool(last_boxed(turn.action.text))

    def news(self, agent: AgentSpec, turn: Turn, episode: Episode) -> Mapping[str, str]:  # noqa: ARG002
        """What its program printed."""
        limit = self.prompt_of(agent).output_chars
        return {"solver.output": output_text(turn.tool_result, limit)}

    def code_in(self, agent: str, text: str) -> ToolRequest | None:
        """The last complete Python block outside thinking, unless the answer is boxed already."""
        return None if last_boxed(text) else Team.code_in(self, agent, text)
