r"""Single: one agent with Python, in up to three turns.

    problem ──▶ Solver ──program──▶ output ──▶ Solver ──▶ ... ──▶ \boxed{answer}

It acts again as long as it boxes nothing.
"""

from dataclasses import dataclass

from mappa_core.core.records.episodes import Episode, Observation, StopReason, Turn
from mappa_core.core.text import last_boxed, last_program
from mappa_core.rollout.teams.base import PYTHON, AgentSpec, conversation, next_in_chain, prompts_of
from mappa_core.rollout.teams.mathchat import output_text
from mappa_core.rollout.teams.prompts import PromptSet, fill

SOLVER = AgentSpec(
    name="solver",
    title="Solver",
    max_turns=3,
    sees=("problem", "solver.output"),
    tools=(PYTHON,),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """The team of one, with one of its prompt sets."""

    prompts: PromptSet
    name: str = "single"
    agents: tuple[AgentSpec, ...] = (SOLVER,)
    rules: str | None = "single"
    rubrics: str = "single"

    def next_observation(self, episode: Episode) -> Observation | None:
        """The problem, and what the programs so far have printed."""
        agent = next_in_chain(self.agents, episode, _is_done)
        if agent is None:
            return None
        prompt = self.prompts.prompts[agent.name]
        question = {"problem": episode.problem.statement}

        def feedback(turn: Turn) -> str:
            output = output_text(turn.tool_result, prompt.output_chars)
            news = question | {"solver.output": output}
            return fill(prompt.feedback or "{{solver.output}}", news)

        messages = conversation(prompt, question, episode.turns_of(agent.name), feedback)
        return Observation(agent=agent.name, messages=messages)

    def code_in(self, agent: str, text: str) -> str | None:
        """The last complete Python block outside thinking, unless the answer is boxed already."""
        return None if agent != SOLVER.name or last_boxed(text) else last_program(text)

    def final_answer(self, episode: Episode) -> str | None:
        """What the last turn boxed."""
        return last_boxed(episode.turns[-1].action.text) if episode.turns else None

    def stop_reason(self, episode: Episode) -> StopReason:
        """`ANSWERED` where something was boxed."""
        answered = self.final_answer(episode) is not None
        return StopReason.ANSWERED if answered else StopReason.MAX_TURNS


def load_single(prompts: str) -> Single:
    """The team of one with the prompt set `prompts`.

    Raises:
        ConfigError: No such prompt set, or its file breaks the format.
    """
    return Single(prompts=prompts_of("single", prompts, (SOLVER,)))


def _is_done(turn: Turn) -> bool:
    return bool(last_boxed(turn.action.text))
