"""DSBench: three agents solve one prediction task, handing files on through a workspace.

    Data Engineer ──X_train.pkl, y_train.pkl, X_test.pkl──▶ Modeler ──model.pkl──▶ Analyst
      up to 4 turns                                      up to 4 turns         up to 4 turns
                                                                       ──▶ submission.csv

An agent acts again until its program has run well and every file it owes is there and fresh, or
it says DONE without a program, or its turns are used up. The next one works with what there is.
"""

import re
from dataclasses import dataclass

from mappa_core.core.file_trail import TrackedFile, files_after, missing_files, ran_well
from mappa_core.core.records.episodes import Episode, Message, Observation, StopReason, Turn
from mappa_core.core.records.scores import Duty
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.core.text import clipped, last_program, visible
from mappa_core.rollout.teams.base import PYTHON, AgentSpec, conversation, next_in_chain, prompts_of
from mappa_core.rollout.teams.prompts import Prompt, PromptSet, fill

SUBMISSION = "submission.csv"
_TASK_FILES = "train.csv, test.csv, sample_submission.csv"
_SHOWN_REFUSALS = 4
_DONE = re.compile(r"^[^\w\n]*DONE[^\w\n]*$", re.MULTILINE)


def _spec(name: str, title: str, files: tuple[str, ...], hears: tuple[str, ...]) -> AgentSpec:
    news = tuple(f"{name}.{what}" for what in ("output", "files", "missing", "turns_left"))
    return AgentSpec(
        name=name,
        title=title,
        max_turns=4,
        sees=("problem", "files", "turns", *(f"{agent}.output" for agent in hears), *news),
        makes=files,
        tools=(PYTHON,),
    )


ENGINEER = _spec("data_engineer", "Data Engineer", ("X_train.pkl", "y_train.pkl", "X_test.pkl"), ())
MODELER = _spec("modeler", "Modeler", ("model.pkl",), (ENGINEER.name,))
ANALYST = _spec("analyst", "Analyst", (SUBMISSION,), (ENGINEER.name, MODELER.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class DsBench:
    """The team, with one of its prompt sets."""

    prompts: PromptSet
    name: str = "dsbench"
    agents: tuple[AgentSpec, ...] = (ENGINEER, MODELER, ANALYST)
    rules: str | None = "dsbench"
    rubrics: str = "dsbench"

    def next_observation(self, episode: Episode) -> Observation | None:
        """What the next agent sees, or None when the Analyst has handed over."""

        def hands_over(turn: Turn) -> bool:
            return _hands_over(turn, episode.turns[: turn.index + 1])

        agent = next_in_chain(self.agents, episode, hands_over)
        if agent is None:
            return None
        return Observation(agent=agent.name, messages=self._messages(agent, episode))

    def code_in(self, agent: str, text: str) -> str | None:
        """The last complete Python block outside thinking."""
        return last_program(text) if any(spec.name == agent for spec in self.agents) else None

    def final_answer(self, episode: Episode) -> str | None:
        """The name of the submission, where one lies in the workspace."""
        return SUBMISSION if SUBMISSION in files_after(episode.turns) else None

    def stop_reason(self, episode: Episode) -> StopReason:
        """`ANSWERED` where there is a submission."""
        found = self.final_answer(episode) is not None
        return StopReason.ANSWERED if found else StopReason.MAX_TURNS

    def _messages(self, agent: AgentSpec, episode: Episode) -> tuple[Message, ...]:
        prompt = self.prompts.prompts[agent.name]
        own = episode.turns_of(agent.name)
        before = episode.turns[: own[0].index] if own else episode.turns
        asked = _asked(prompt, agent, episode, before)

        def feedback(turn: Turn) -> str:
            left = agent.max_turns - own.index(turn) - 1
            news = _news(prompt, agent, turn, episode.turns[: turn.index + 1])
            return _feedback(prompt, agent, asked | news | {f"{agent.name}.turns_left": str(left)})

        return conversation(prompt, asked, own, feedback)


def load_dsbench(prompts: str) -> DsBench:
    """DSBench with the prompt set `prompts`.

    Raises:
        ConfigError: No such prompt set, or one of its files breaks the format.
    """
    return DsBench(prompts=prompts_of("dsbench", prompts, (ENGINEER, MODELER, ANALYST)))


def output_text(result: ToolResult | None, limit: int) -> str:
    """What an agent is told about a run: how it ended and both ends of what it wrote.

    Args:
        result: The run, or None where there was no program.
        limit: Characters kept of what the program wrote.
    """
    if result is None:
        return "no program was run: write one complete ```python block"
    if result.status is ToolStatus.OK:
        return clipped(result.stdout.strip(), limit) or "the program printed nothing"
    written = clipped("\n".join((result.stdout, result.stderr)).strip(), limit)
    exit_code = "" if result.exit_code is None else f", exit code {result.exit_code}"
    return f"the program failed ({result.status.value}{exit_code})\n{written}".rstrip()


def _hands_over(turn: Turn, so_far: tuple[Turn, ...]) -> bool:
    if turn.tool_result is None:
        return bool(_DONE.search(visible(turn.action.text)))
    duty = next(agent.makes for agent in (ENGINEER, MODELER, ANALYST) if agent.name == turn.agent)
    files = files_after(so_far)
    return ran_well(turn) and all(name in files and not files[name].stale for name in duty)


def _asked(
    prompt: Prompt, agent: AgentSpec, episode: Episode, before: tuple[Turn, ...]
) -> dict[str, str]:
    """What the agent is told before its first turn; nothing else can get into its prompt."""
    known = {
        "problem": episode.problem.statement,
        "files": _listing(before),
        "turns": str(agent.max_turns),
    }
    for spec in (ENGINEER, MODELER):
        if spec is not agent:
            turns = [turn for turn in before if turn.agent == spec.name]
            known[f"{spec.name}.output"] = _summary(turns, prompt.output_chars)
    return {name: known[name] for name in agent.sees if name in known}


def _summary(turns: list[Turn], limit: int) -> str:
    """What the last program of an agent printed, its last good one if there is any."""
    ran = [turn.tool_result for turn in turns if turn.tool_result is not None]
    good = [result for result in ran if result.status is ToolStatus.OK]
    return output_text((good or ran or [None])[-1], limit)


def _news(prompt: Prompt, agent: AgentSpec, turn: Turn, so_far: tuple[Turn, ...]) -> dict[str, str]:
    missing = missing_files(Duty(agent=agent.name, files=agent.makes), so_far)
    return {
        f"{agent.name}.output": _told(turn.tool_result, prompt.output_chars),
        f"{agent.name}.files": _listing(so_far),
        f"{agent.name}.missing": ", ".join(missing) or "nothing",
    }


def _told(result: ToolResult | None, limit: int) -> str:
    """Its output and, lest an agent believe in files that are not there, what was turned away."""
    refused = result.rejected[:_SHOWN_REFUSALS] if result else ()
    lines = [f"not handed on: {file.name} ({file.reason})" for file in refused]
    return "\n".join([output_text(result, limit), *lines])


def _feedback(prompt: Prompt, agent: AgentSpec, values: dict[str, str]) -> str:
    return fill(prompt.feedback or f"{{{{{agent.name}.output}}}}", values)


def _listing(turns: tuple[Turn, ...]) -> str:
    """The workspace in one line, e.g. `train.csv, ..., model.pkl (old: ...)`."""
    made = [_listed(name, file) for name, file in sorted(files_after(turns).items())]
    return ", ".join([_TASK_FILES, *made])


def _listed(name: str, file: TrackedFile) -> str:
    return f"{name} (old: {file.stale})" if file.stale else name
