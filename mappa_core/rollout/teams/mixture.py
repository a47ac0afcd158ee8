r"""Mixture: two agents propose, a third makes one answer of what they wrote.

    Proposer 1 ──┐
    Proposer 2 ──┴──▶ Aggregator ──▶ \boxed{answer}

After Wang et al. 2024 (arXiv 2406.04692), with one layer. The proposers do not see each other.
"""

from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, Observation, StopReason, Turn
from mappa_core.core.text import clipped, last_boxed, visible
from mappa_core.rollout.teams.base import AgentSpec, conversation, next_in_chain, prompts_of
from mappa_core.rollout.teams.prompts import Prompt, PromptSet

PROPOSERS = tuple(
    AgentSpec(
        name=f"proposer_{number}",
        title=f"Proposer {number}",
        max_turns=1,
        sees=("problem",),
    )
    for number in (1, 2)
)
AGGREGATOR = AgentSpec(
    name="aggregator",
    title="Aggregator",
    max_turns=1,
    sees=("problem", *(proposer.name for proposer in PROPOSERS)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The team, with one of its prompt sets."""

    prompts: PromptSet
    name: str = "mixture"
    agents: tuple[AgentSpec, ...] = (*PROPOSERS, AGGREGATOR)
    rules: str | None = "mixture"
    rubrics: str = "mixture"

    def next_observation(self, episode: Episode) -> Observation | None:
        """The problem, and for the Aggregator the proposals."""
        agent = next_in_chain(self.agents, episode, _speaks_once)
        if agent is None:
            return None
        prompt = self.prompts.prompts[agent.name]
        values = _values(prompt, agent, episode)
        return Observation(agent=agent.name, messages=conversation(prompt, values, (), _no_news))

    def code_in(self, agent: str, text: str) -> str | None:  # noqa: ARG002
        """Nobody runs code."""
        return None

    def final_answer(self, episode: Episode) -> str | None:
        """What the Aggregator boxed."""
        turns = episode.turns_of(AGGREGATOR.name)
        return last_boxed(turns[-1].action.text) if turns else None

    def stop_reason(self, episode: Episode) -> StopReason:
        """`ANSWERED` once the Aggregator has spoken."""
        spoke = bool(episode.turns_of(AGGREGATOR.name))
        return StopReason.ANSWERED if spoke else StopReason.MAX_TURNS


def load_mixture(prompts: str) -> Mixture:
    """The mixture with the prompt set `prompts`.

    Raises:
        ConfigError: No such prompt set, or one of its files breaks the format.
    """
    return Mixture(prompts=prompts_of("mixture", prompts, (*PROPOSERS, AGGREGATOR)))


def _speaks_once(_turn: Turn) -> bool:
    return True


def _no_news(_turn: Turn) -> str:
    return ""


def _values(prompt: Prompt, agent: AgentSpec, episode: Episode) -> dict[str, str]:
    known = {"problem": episode.problem.statement}
    for proposer in PROPOSERS:
        for turn in episode.turns_of(proposer.name):
            known[proposer.name] = clipped(visible(turn.action.text), prompt.output_chars)
    return {name: known[name] for name in agent.sees}
