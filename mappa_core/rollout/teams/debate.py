r"""Debate: some agents answer, read each other, and answer again; the majority decides.

    round 1    Debater 1 │ Debater 2 │ Debater 3        each sees the problem alone
    round 2    Debater 1 │ Debater 2 │ Debater 3        each sees what the others said before
               ───────────────────────────────▶ majority of the last \boxed{} of each

After Du et al. 2023 (arXiv 2305.14325). Within a round no debater sees another, so that the order
in which they act says nothing.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.text import clipped, visible
from mappa_core.rollout.teams.base import AgentSpec, Team, last_box_of

ROUNDS = 2


def debaters(count: int) -> tuple[AgentSpec, ...]:
    """So many debaters; all have the words of the first where a set has no file for them."""
    return tuple(
        AgentSpec(
            name=f"debater_{number}",
            title=f"Debater {number}",
            max_turns=ROUNDS,
            sees=("problem", f"debater_{number}.others"),
        )
        for number in range(1, count + 1)
    )


DEBATERS = debaters(3)


@dataclass(frozen=True, kw_only=True)
class Debate(Team):
    """The team, with one of its prompt sets."""

    name: str = "debate"
    agents: tuple[AgentSpec, ...] = DEBATERS
    rules: str | None = "debate"
    rubrics: str = "debate"

    def next_agent(self, episode: Episode) -> AgentSpec | None:
        """The one that has spoken least, in order; None after the last round."""
        agent = min(self.agents, key=lambda each: len(episode.turns_of(each.name)))
        return agent if len(episode.turns_of(agent.name)) < agent.max_turns else None

    def news(self, agent: AgentSpec, turn: Turn, episode: Episode) -> Mapping[str, str]:
        """What the others said in the round of `turn`, by title."""
        limit = self.prompt_of(agent).output_chars
        spoken = episode.turns_of(agent.name).index(turn)
        others = [
            (other.title, episode.turns_of(other.name)[spoken].action.text)
            for other in self.agents
            if other is not agent
        ]
        said = "\n".join(f"{title}: {clipped(visible(text), limit)}" for title, text in others)
        return {f"{agent.name}.others": said}

    def final_answer(self, episode: Episode) -> str | None:
        """What most debaters boxed last; of equals, what the first of them boxed."""
        answers = [last_box_of(agent, episode) for agent in self.agents]
        said = [answer for answer in answers if answer is not None]
        votes = Counter(map(_normal, said))
        # `max` takes the first of equals.
        return max(said, key=lambda answer: votes[_normal(answer)], default=None)


def _normal(answer: str) -> str:
    """An answer without what people write differently: spaces, dollar signs, thousands' commas."""
    return "".join(answer.split()).strip("$").replace(",", "").casefold()
