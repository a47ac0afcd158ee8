"""CHAMP's labelled solutions as a further exam: does a coach find the flaw in an argument?

CHAMP (Mao, Kim & Zhou 2024, arXiv 2401.06961; MIT licence; `v0.json` of `champ-dataset` 1.0.0) has
540 solutions of 270 competition problems by language models, each with the first wrong step as
people marked it, or none. 42 problems have a solution of each kind: so many pairs, 84 cases.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from mappa_core.audit.exam.cases import OrderedPair, written_cases
from mappa_core.audit.exam.script import Work, Written, exam_problem
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.rollout.teams.base import AgentSpec, Team

KIND = "sound over flawed"


class _Solution(BaseModel):
    text: str
    start_idx: int | None = None
    """Where the first wrong step begins; None where there is none."""


class _Problem(BaseModel):
    statement: str = Field(alias="_text")
    solutions: Mapping[str, _Solution] = Field(alias="fws_annotations")


class _File(BaseModel):
    problems: Mapping[str, _Problem]


@dataclass(frozen=True, slots=True)
class SolutionTask:
    """A problem with a sound solution and a flawed one."""

    statement: str
    sound: str
    flawed: str
    has_luck: bool = False

    @property
    def problem(self) -> Problem:
        """The problem; its answer is for people to compare."""
        return exam_problem(self.statement, "")

    def written(self, agent: AgentSpec, work: Work) -> Written:  # noqa: ARG002
        """The solution, word for word."""
        return Written(text=self.sound if work is Work.RIGHT else self.flawed)


def champ_pairs(team: Team, file: Path) -> tuple[OrderedPair, ...]:
    """Pair the solutions of each problem that has both kinds; the team's first agent wrote them.

    It sees the problem alone, as those models did.

    Raises:
        ConfigError: The file cannot be read or is not CHAMP's, or the team works on files.
    """
    first = team.agents[0]
    if first.makes:
        raise ConfigError(f"team {team.name} works on files: CHAMP's solutions are words")
    works = (Work.RIGHT, Work.WRONG)
    return tuple(
        OrderedPair(kind=KIND, better=cases[Work.RIGHT], worse=cases[Work.WRONG])
        for number, task in enumerate(_tasks(file))
        for cases in [written_cases(team, first, number, task, works)]
    )


def _tasks(file: Path) -> Iterator[SolutionTask]:
    try:
        problems = _File.model_validate_json(file.read_bytes()).problems.values()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except ValidationError:
        raise ConfigError(
            f"{file} is not CHAMP's v0.json: `pip download champ-dataset==1.0.0 --no-deps` has it"
        ) from None
    for problem in problems:
        sound, flawed = (
            [each.text for each in problem.solutions.values() if (each.start_idx is None) is right]
            for right in (True, False)
        )
        if sound and flawed:
            yield SolutionTask(problem.statement, sound[0], flawed[0])
