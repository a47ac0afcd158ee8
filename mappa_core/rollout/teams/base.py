"""What a team is: agents in order, what each of them sees, and the pure decisions of play.

    next_observation(episode) ─▶ Observation | None      which agent acts next, on what
    code_in(agent, text)      ─▶ code | call | None      what of the action is run
    final_answer(episode)     ─▶ text | None             what the team as a whole says
    stop_reason(episode)      ─▶ StopReason              why the episode is over

A team is one module with a subclass of `Team`, its prompts, and a line in `TEAMS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.core.records.episodes import (
    Action,
    Episode,
    Message,
    Observation,
    StopReason,
    Turn,
)
from mappa_core.core.records.scores import Duty
from mappa_core.core.records.tools import ToolRequest
from mappa_core.core.text import has_thought, last_boxed, last_program, visible
from mappa_core.rollout.teams.prompts import Prompt, PromptSet, fill

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


@dataclass(frozen=True, kw_only=True)
class Team:
    """Agents that solve one problem together; every decision is a function of the episode.

    As it stands here, agents act one after another, each until it hands over, and see the problem.
    """

    prompts: PromptSet
    """The words each agent is given, with their version."""
    name: str
    """As configurations and registered models spell it."""
    agents: tuple[AgentSpec, ...]
    """The members, in order of their first turns."""
    rules: str | None
    """The rule coach's set of rules for its agents; None where it has none."""
    rubrics: str
    """The folder of rubric sets for its agents."""

    def final_answer(self, episode: Episode) -> str | None:
        """The team's answer, what its last agent boxed last; None where it gave none."""
        return last_box_of(self.agents[-1], episode)

    def stop_reason(self, episode: Episode) -> StopReason:
        """Why a finished episode ended: `ANSWERED` where there is a final answer."""
        answered = self.final_answer(episode) is not None
        return StopReason.ANSWERED if answered else StopReason.MAX_TURNS

    def code_in(self, agent: str, text: str) -> ToolRequest | None:
        """The program or the call that an action asks for; None where it has or may have none."""
        runs_code = any(spec.name == agent and spec.runs_code for spec in self.agents)
        return last_program(text) if runs_code else None

    def next_observation(self, episode: Episode) -> Observation | None:
        """What the next agent sees, or None when the episode is over."""
        agent = self.next_agent(episode)
        if agent is None:
            return None
        return Observation(agent=agent.name, messages=self._conversation(agent, episode))

    def next_agent(self, episode: Episode) -> AgentSpec | None:
        """The first of the chain that has not acted, or may act again and has not handed over."""
        for agent in self.agents:
            turns = episode.turns_of(agent.name)
            if not turns or (
                len(turns) < agent.max_turns and not self.hands_over(turns[-1], episode)
            ):
                return agent
        return None

    def hands_over(self, turn: Turn, episode: Episode) -> bool:  # noqa: ARG002
        """Whether the agent of `turn`, which may still act, leaves it at that."""
        return True

    def question(self, agent: AgentSpec, episode: Episode) -> Mapping[str, str]:  # noqa: ARG002
        """What the agent's prompt may quote from its first turn on, by placeholder."""
        return {"problem": episode.problem.statement}

    def news(self, agent: AgentSpec, turn: Turn, episode: Episode) -> Mapping[str, str]:  # noqa: ARG002
        """What the agent is told after its `turn`, by placeholder.

        The first value is the whole message where the prompt has no [feedback].
        """
        return {}

    def prompt_of(self, agent: AgentSpec) -> Prompt:
        """The agent's prompt."""
        return self.prompts.prompts[agent.name]

    def _conversation(self, agent: AgentSpec, episode: Episode) -> tuple[Message, ...]:
        """Opening and question as in its first turn, then what came of each of its turns.

        The question stays as it was, so that the prompt of a later turn begins with that of the
        first. Nothing that the agent does not see can get into it.
        """
        prompt = self.prompt_of(agent)
        known = self.question(agent, episode)
        question = {name: known[name] for name in agent.sees if name in known}
        messages = [*prompt.opening, Message(role="user", content=fill(prompt.template, question))]
        for turn in episode.turns_of(agent.name):
            said, news = turn.action, self.news(agent, turn, episode)
            feedback = next(iter(news.values()), "")
            if prompt.feedback is not None:
                feedback = fill(prompt.feedback, {**question, **news})
            messages += [_as_said(said), Message(role="user", content=feedback)]
        return tuple(messages)


def _as_said(action: Action) -> Message:
    """An agent's own earlier reply: the ids it sampled, or its words alone where it had thought.

    Templates of models that think leave earlier thoughts out, and so does what is spliced.
    """
    if has_thought(action.text):
        return Message(role="assistant", content=visible(action.text))
    return Message(role="assistant", content=action.text, token_ids=action.token_ids)


def duties_of(team: Team) -> tuple[Duty, ...]:
    """The files each agent has to leave, in the order of the chain."""
    return tuple(Duty(agent=agent.name, files=agent.makes) for agent in team.agents if agent.makes)


def last_box_of(agent: AgentSpec, episode: Episode) -> str | None:
    """What the agent boxed in its last turn; None where it boxed nothing or has not acted."""
    turns = episode.turns_of(agent.name)
    return last_boxed(turns[-1].action.text) if turns else None
