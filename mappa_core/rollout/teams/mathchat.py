r"""MathChat: three agents solve one mathematics problem.

    Problem Solver ──plan──▶ Code Executor ──its program's output──▶ Verifier ──▶ \boxed{answer}
        1 turn                 1 or 2 turns                            1 turn

The Code Executor acts again only when its program failed, printed nothing or was not there.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, StopReason, Turn
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.core.text import clipped, visible
from mappa_core.rollout.teams.base import PYTHON, AgentSpec, Team

SOLVER = AgentSpec(
    name="problem_solver",
    title="Problem Solver",
    max_turns=1,
    sees=("problem",),
)
EXECUTOR = AgentSpec(
    name="code_executor",
    title="Code Executor",
    max_turns=2,
    sees=("problem", "problem_solver", "code_executor.output"),
    tools=(PYTHON,),
)
VERIFIER = AgentSpec(
    name="verifier",
    title="Verifier",
    max_turns=1,
    sees=("problem", "code_executor", "code_executor.output"),
)


@dataclass(frozen=True, kw_only=True)
class MathChat(Team):
    """The team, with one of its prompt sets."""

    name: str = "mathchat"
    agents: tuple[AgentSpec, ...] = (SOLVER, EXECUTOR, VERIFIER)
    rules: str | None = "mathchat"
    rubrics: str = "mathchat"

    def hands_over(self, turn: Turn, episode: Episode) -> bool:  # noqa: ARG002
        """Whether its program ran well and printed something."""
        result = turn.tool_result
        return result is not None and result.status is ToolStatus.OK and bool(result.stdout.strip())

    def question(self, agent: AgentSpec, episode: Episode) -> Mapping[str, str]:
        """The problem, and what each other agent wrote and printed last."""
        known = {"problem": episode.problem.statement}
        limit = self.prompt_of(agent).output_chars
        for turn in episode.turns:
            # What the executor printed itself is its own news: it is told after its turn.
            if turn.agent != agent.name:
                known[turn.agent] = visible(turn.action.text)
                known[f"{turn.agent}.output"] = output_text(turn.tool_result, limit)
        return known

    def news(self, agent: AgentSpec, turn: Turn, episode: Episode) -> Mapping[str, str]:  # noqa: ARG002
        """What the Code Executor's program printed."""
        limit = self.prompt_of(agent).output_chars
        return {"code_executor.output": output_text(turn.tool_result, limit)}

    def stop_reason(self, episode: Episode) -> StopReason:
        """`ANSWERED` once the Verifier has spoken, box or no box."""
        spoke = bool(episode.turns_of(VERIFIER.name))
        return StopReason.ANSWERED if spoke else StopReason.MAX_TURNS


def output_text(result: ToolResult | None, limit: int) -> str:
    """What an agent is told about a run, with `limit` characters of what the program wrote."""
    if result is None:
        return "no program was run"
    if result.status is ToolStatus.OK:
        return clipped(result.stdout.strip(), limit) or "the program printed nothing"
    written = clipped("\n".join((result.stdout, result.stderr)).strip(), limit)
    return f"the program failed ({result.status.value}) {written}".rstrip()
