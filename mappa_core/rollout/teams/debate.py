r"""Debate: three agents answer, read each other, and answer again; the majority decides.

    round 1    Debater 1 │ Debater 2 │ Debater 3        each sees the problem alone
    round 2    Debater 1 │ Debater 2 │ Debater 3        each sees what the others said before
               ───────────────────────────────▶ majority of the last \boxed{} of each

After Du et al. 2023 (arXiv 2305.14325). Within a round nobody sees anybody, so that the order in
which they act says nothing.
"""

from collections import Counter
from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, Observation, StopReason, Turn
from mappa_core.core.text import clipped, last_boxed, visible
from mappa_core.rollout.teams.base import AgentSpec, conversation, prompts_of
from mappa_core.rollout.teams.prompts import Prompt, PromptSet, fill

ROUNDS = 2
DEBATERS = tuple(
    AgentSpec(
        name=f"debater_{number}",
        title=f"Debater {number}",
        max_turns=ROUNDS,
        sees=("problem", f"debater_{number}.others"),
    )
    for number in (1, 2, 3)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Debate:
    """The team, with one of its prompt sets."""

    prompts: PromptSet
    name: str = "debate"
    agents: tuple[AgentSpec, ...] = DEBATERS
    rules: str | None = "debate"
    rubrics: str = "debate"

    def next_observation(self, episode: Episode) -> Observation | None:
        """Whoever has spoken least, in order; None after the last round."""
        agent = min(self.agents, key=lambda each: len(episode.turns_of(each.name)))
        spoken = episode.turns_of(agent.name)
        if len(spoken) == agent.max_turns:
            return None
        prompt = self.prompts.prompts[agent.name]
        question = {"problem": episode.problem.statement}

        def feedback(turn: Turn) -> str:
            said = self._others(episode, agent, spoken.index(turn), prompt)
            key = f"{agent.name}.others"
            return fill(prompt.feedback or f"{{{{{key}}}}}", question | {key: said})

        messages = conversation(prompt, question, spoken, feedback)
        return Observation(agent=agent.name, messages=messages)

    def code_in(self, agent: str, text: str) -> str | None:  # noqa: ARG002
        """Nobody runs code."""
        return None

    def final_answer(self, episode: Episode) -> str | None:
        """What most debaters boxed last; of equals, what the first of them boxed."""
        last = [episode.turns_of(agent.name)[-1:] for agent in self.agents]
        answers = [last_boxed(turn.action.text) for turns in last for turn in turns]
        said = [answer for answer in answers if answer is not None]
        votes = Counter(map(_normal, said))
        # `max` takes the first of equals.
        return max(said, key=lambda answer: votes[_normal(answer)], default=None)

    def stop_reason(self, episode: Episode) -> StopReason:
        """`ANSWERED` where anybody boxed something."""
        answered = self.final_answer(episode) is not None
        return StopReason.ANSWERED if answered else StopReason.MAX_TURNS

    def _others(self, episode: Episode, agent: AgentSpec, spoken: int, prompt: Prompt) -> str:
        """What the others said in one round, by title."""
        turns = {
            each.title: episode.turns_of(each.name)[spoken]
            for each in self.agents
            if each is not agent
        }
        return "\n".join(
            f"{title}: {clipped(visible(turn.action.text), prompt.output_chars)}"
            for title, turn in turns.items()
        )


def load_debate(prompts: str) -> Debate:
    """The debate with the prompt set `prompts`.

    Raises:
        ConfigError: No such prompt set, or one of its files breaks the format.
    """
    return Debate(prompts=prompts_of("debate", prompts, DEBATERS))


def _normal(answer: str) -> str:
    """An answer without what people write differently: spaces, dollar signs, thousands' commas."""
    return "".join(answer.split()).strip("$").replace(",", "").casefold()
