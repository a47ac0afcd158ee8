r"""MathChat: three agents solve one mathematics problem.

    Problem Solver ──plan──▶ Code Executor ──its program's output──▶ Verifier ──▶ \boxed{answer}
        1 turn                 1 or 2 turns                            1 turn

The Code Executor acts again only when its program failed, printed nothing or was not there.
"""

from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, Message, Observation, StopReason, Turn
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.core.text import clipped, last_boxed, last_program, visible
from mappa_core.rollout.teams.base import PYTHON, AgentSpec, conversation, next_in_chain, prompts_of
from mappa_core.rollout.teams.prompts import Prompt, PromptSet, fill

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MathChat:
    """The team, with one of its prompt sets."""

    prompts: PromptSet
    name: str = "mathchat"
    agents: tuple[AgentSpec, ...] = (SOLVER, EXECUTOR, VERIFIER)
    rules: str | None = "mathchat"
    rubrics: str = "mathchat"

    def next_observation(self, episode: Episode) -> Observation | None:
        """What the next agent sees, or None when the Verifier has spoken."""
        agent = next_in_chain(self.agents, episode, _hands_over)
        if agent is None:
            return None
        return Observation(agent=agent.name, messages=self._messages(agent, episode))

    def code_in(self, agent: str, text: str) -> str | None:
        """The last complete Python block outside thinking, where the agent may run code."""
        runs_code = any(spec.name == agent and spec.runs_code for spec in self.agents)
        return last_program(text) if runs_code else None

    def final_answer(self, episode: Episode) -> str | None:
        """What the Verifier boxed."""
        turns = episode.turns_of(VERIFIER.name)
        return last_boxed(turns[-1].action.text) if turns else None

    def stop_reason(self, episode: Episode) -> StopReason:
        """`ANSWERED` once the Verifier has spoken."""
        spoke = bool(episode.turns_of(VERIFIER.name))
        return StopReason.ANSWERED if spoke else StopReason.MAX_TURNS

    def _messages(self, agent: AgentSpec, episode: Episode) -> tuple[Message, ...]:
        prompt = self.prompts.prompts[agent.name]
        # What the executor printed is its own news: it belongs into the feedback of its turn.
        values = _values(prompt, agent, episode)
        own = episode.turns_of(agent.name)
        return conversation(prompt, values, own, lambda turn: _feedback(prompt, turn, values))


def load_mathchat(prompts: str) -> MathChat:
    """MathChat with the prompt set `prompts`.

    Raises:
        ConfigError: No such prompt set, or one of its files breaks the format.
    """
    return MathChat(prompts=prompts_of("mathchat", prompts, (SOLVER, EXECUTOR, VERIFIER)))


def output_text(result: ToolResult | None, limit: int) -> str:
    """What an agent is told about a run, in words.

    Args:
        result: The run, or None where there was no program.
        limit: Characters kept of what the program wrote.
    """
    if result is None:
        return "no program was run"
    if result.status is ToolStatus.OK:
        return clipped(result.stdout.strip(), limit) or "the program printed nothing"
    written = clipped("\n".join((result.stdout, result.stderr)).strip(), limit)
    return f"the program failed ({result.status.value}) {written}".rstrip()


def _hands_over(turn: Turn) -> bool:
    result = turn.tool_result
    return result is not None and result.status is ToolStatus.OK and bool(result.stdout.strip())


def _values(prompt: Prompt, agent: AgentSpec, episode: Episode) -> dict[str, str]:
    """What the agent sees, by placeholder; nothing else can get into its prompt."""
    known = {"problem": episode.problem.statement}
    for spec in (SOLVER, EXECUTOR):
        if spec is not agent and (turns := episode.turns_of(spec.name)):
            last = turns[-1]
            known[spec.name] = visible(last.action.text)
            known[f"{spec.name}.output"] = output_text(last.tool_result, prompt.output_chars)
    return {name: known[name] for name in agent.sees if name in known}


def _feedback(prompt: Prompt, turn: Turn, values: dict[str, str]) -> str:
    output = output_text(turn.tool_result, prompt.output_chars)
    return fill(
        prompt.feedback or "{{code_executor.output}}", values | {"code_executor.output": output}
    )
