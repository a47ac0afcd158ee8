"""DSBench: three agents solve one prediction task, handing files on through a workspace.

    Data Engineer ──X_train.pkl, y_train.pkl, X_test.pkl──▶ Modeler ──model.pkl──▶ Analyst
      up to 4 turns                                      up to 4 turns         up to 4 turns
                                                                       ──▶ submission.csv

An agent acts again until its program has run well and every file it owes is there and fresh, or
it says DONE without a program, or its turns are used up. The next one works with what there is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.core.file_trail import TrackedFile, files_after, missing_files, ran_well
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.scores import Duty
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.core.text import clipped, visible
from mappa_core.rollout.teams.base import PYTHON, AgentSpec, Team

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


@dataclass(frozen=True, kw_only=True)
class DsBench(Team):
    """The team, with one of its prompt sets."""

    name: str = "dsbench"
    agents: tuple[AgentSpec, ...] = (ENGINEER, MODELER, ANALYST)
    rules: str | None = "dsbench"
    rubrics: str = "dsbench"

    def hands_over(self, turn: Turn, episode: Episode) -> bool:
        """Whether its program ran well and all it owes is there and fresh, or it says DONE."""
        if turn.tool_result is None:
            return bool(_DONE.search(visible(turn.action.text)))
        owed = next(agent.makes for agent in self.agents if agent.name == turn.agent)
        files = files_after(episode.turns[: turn.index + 1])
        return ran_well(turn) and all(name in files and not files[name].stale for name in owed)

    def question(self, agent: AgentSpec, episode: Episode) -> Mapping[str, str]:
        """The task, the workspace and what the others' programs printed before its first turn."""
        own = episode.turns_of(agent.name)
        before = episode.turns[: own[0].index] if own else episode.turns
        limit = self.prompt_of(agent).output_chars
        outputs = {
            f"{other.name}.output": _summary(before, other, limit)
            for other in self.agents
            if other.name != agent.name
        }
        return {
            "problem": episode.problem.statement,
            "files": _listing(before),
            "turns": str(agent.max_turns),
            **outputs,
        }

    def news(self, agent: AgentSpec, turn: Turn, episode: Episode) -> Mapping[str, str]:
        """How its program ended, the workspace after it, what it still owes, turns left."""
        limit = self.prompt_of(agent).output_chars
        turns = episode.turns[: turn.index + 1]
        missing = missing_files(Duty(agent=agent.name, files=agent.makes), turns)
        left = agent.max_turns - episode.turns_of(agent.name).index(turn) - 1
        return {
            f"{agent.name}.output": _outcome(turn.tool_result, limit),
            f"{agent.name}.files": _listing(turns),
            f"{agent.name}.missing": ", ".join(missing) or "nothing",
            f"{agent.name}.turns_left": str(left),
        }

    def final_answer(self, episode: Episode) -> str | None:
        """The name of the submission, where one lies in the workspace."""
        return SUBMISSION if SUBMISSION in files_after(episode.turns) else None


def output_text(result: ToolResult | None, limit: int) -> str:
    """What an agent is told about a run: how it ended, `limit` characters of what it wrote."""
    if result is None:
        return "no program was run: write one complete ```python block"
    if result.status is ToolStatus.OK:
        return clipped(result.stdout.strip(), limit) or "the program printed nothing"
    written = clipped("\n".join((result.stdout, result.stderr)).strip(), limit)
    exit_code = "" if result.exit_code is None else f", exit code {result.exit_code}"
    return f"the program failed ({result.status.value}{exit_code})\n{written}".rstrip()


def _summary(turns: tuple[Turn, ...], agent: AgentSpec, limit: int) -> str:
    """What the last program of an agent printed, its last good one if there is any."""
    results = [turn.tool_result for turn in turns if turn.agent == agent.name]
    ran = [result for result in results if result is not None]
    good = [result for result in ran if result.status is ToolStatus.OK]
    return output_text((good or ran or [None])[-1], limit)


def _outcome(result: ToolResult | None, limit: int) -> str:
    """Its output and, lest an agent believe in files that are not there, what was turned away."""
    refused = result.rejected[:_SHOWN_REFUSALS] if result else ()
    lines = [f"not handed on: {file.name} ({file.reason})" for file in refused]
    return "\n".join([output_text(result, limit), *lines])


def _listing(turns: tuple[Turn, ...]) -> str:
    """The workspace in one line, e.g. `train.csv, ..., model.pkl (old: ...)`."""
    made = [_listed(name, file) for name, file in sorted(files_after(turns).items())]
    return ", ".join([_TASK_FILES, *made])


def _listed(name: str, file: TrackedFile) -> str:
    return f"{name} (old: {file.stale})" if file.stale else name
