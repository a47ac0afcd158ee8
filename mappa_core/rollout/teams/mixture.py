r"""Mixture: two agents propose, a third makes one answer of what they wrote.

    Proposer 1 ──┐
    Proposer 2 ──┴──▶ Aggregator ──▶ \boxed{answer}

After Wang et al. 2024 (arXiv 2406.04692), with one layer. The proposers do not see each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, StopReason
from mappa_core.core.text import clipped, visible
from mappa_core.rollout.teams.base import AgentSpec, Team

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


@dataclass(frozen=True, kw_only=True)
class Mixture(Team):
    """The team, with one of its prompt sets."""

    name: str = "mixture"
    agents: tuple[AgentSpec, ...] = (*PROPOSERS, AGGREGATOR)
    rules: str | None = "mixture"
    rubrics: str = "mixture"

    def question(self, agent: AgentSpec, episode: Episode) -> Mapping[str, str]:
        """The problem, and the proposals."""
        limit = self.prompt_of(agent).output_chars
        proposals = {
            turn.agent: clipped(visible(turn.action.text), limit) for turn in episode.turns
        }
        return {"problem": episode.problem.statement, **proposals}

    def stop_reason(self, episode: Episode) -> StopReason:
        """`ANSWERED` once the Aggregator has spoken, box or no box."""
        spoke = bool(episode.turns_of(AGGREGATOR.name))
        return StopReason.ANSWERED if spoke else StopReason.MAX_TURNS
