"""What a team is: agents in order, what each of them sees, and the pure decisions of play.

    next_observation(episode) ─▶ Observation | None      who acts next, on what
    code_in(agent, text)      ─▶ code | call | None      what of the action is run
    final_answer(episode)     ─▶ text | None             what the team as a whole says
    stop_reason(episode)      ─▶ StopReason              why nobody acts any more

A team is one module with a class that keeps this promise, its prompts, and a line in `TEAMS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mappa_core.core.records.episodes import Episode, Message, Observation, StopReason, Turn
from mappa_core.core.records.tools import ToolRequest
from mappa_core.rollout.teams.prompts import Prompt, PromptSet, fill, load_prompts

PYTHON = "python"
SERVER = "mcp:"
"""What the name of a server is preceded by among an agent's tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One member of a team."""

    name: str
    title: str
    """For people and rationales, e.g. `Code Executor`."""
    max_turns: int
    sees: tuple[str, ...]
    """All that its prompt may quote, as placeholder names; anything else stays hidden from it."""
    makes: tuple[str, ...] = ()
    """Files it has to leave in the workspace."""
    tools: tuple[str, ...] = ()
    """What it may use: `python`, or `mcp:<server>` for the tools of a server."""

    @property
    def runs_code(self) -> bool:
        """Whether the program in its text is executed."""
        return PYTHON in self.tools

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers whose tools it may call."""
        return tuple(tool.removeprefix(SERVER) for tool in self.tools if tool.startswith(SERVER))


class Team(Protocol):
    """Agents that solve one problem together; everything here is a function of the episode."""

    @property
    def name(self) -> str:
        """The team's name, as configurations and registered models spell it."""
        ...

    @property
    def agents(self) -> tuple[AgentSpec, ...]:
        """The members, in order of their first turns."""
        ...

    @property
    def prompts(self) -> PromptSet:
        """The words each agent is given, with their version."""
        ...

    @property
    def rules(self) -> str | None:
        """The rule coach's set of rules for its agents; None where it has none."""
        ...

    @property
    def rubrics(self) -> str:
        """The folder of rubric sets for its agents."""
        ...

    def next_observation(self, episode: Episode) -> Observation | None:
        """What the next agent sees, or None when the episode is over."""
        ...

    def code_in(self, agent: str, text: str) -> ToolRequest | None:
        """The program or the call that an action asks for; None where it has or may have none."""
        ...

    def final_answer(self, episode: Episode) -> str | None:
        """The team's answer; None where it gave none."""
        ...

    def stop_reason(self, episode: Episode) -> StopReason:
        """Why a finished episode ended."""
        ...


def next_in_chain(
    agents: tuple[AgentSpec, ...], episode: Episode, hands_over: Callable[[Turn], bool]
) -> AgentSpec | None:
    """Who acts next where agents act one after another, each once or until it hands over.

    Args:
        agents: The chain.
        episode: What has happened so far.
        hands_over: Whether an agent that may still act leaves it at this turn.
    """
    for agent in agents:
        turns = episode.turns_of(agent.name)
        if not turns or (len(turns) < agent.max_turns and not hands_over(turns[-1])):
            return agent
    return None


def conversation(
    prompt: Prompt,
    question: Mapping[str, str],
    own: Sequence[Turn],
    feedback: Callable[[Turn], str],
) -> tuple[Message, ...]:
    """What an agent sees: opening and question as in its first turn, then what came of each turn.

    The question stays as it was, so that the prompt of a later turn begins with that of the first.

    Args:
        prompt: The agent's.
        question: What fills the prompt's template.
        own: The agent's turns so far.
        feedback: What it is told after one of them.
    """
    messages = [*prompt.opening, Message(role="user", content=fill(prompt.template, question))]
    for turn in own:
        said = turn.action
        messages += [
            Message(role="assistant", content=said.text, token_ids=said.token_ids),
            Message(role="user", content=feedback(turn)),
        ]
    return tuple(messages)


def prompts_of(team: str, prompts: str, agents: tuple[AgentSpec, ...]) -> PromptSet:
    """The prompt set `prompts` of a team, each file quoting only what its agent may see.

    Raises:
        ConfigError: No such prompt set, or one of its files breaks the format.
    """
    return load_prompts(team, prompts, {agent.name: agent.sees for agent in agents})
