"""Rubrics: versioned files per team and agent, `rubrics/<team>/<name>-<version>/<agent>.yaml`.

    role         what the agent is for, and what it must leave behind
    criteria     what is marked, each from 0 to 10
    bands        what the scores mean, from 0 to 10 without a gap
    task_types   per kind of work: floor, cap, the metric's scale of caps, worked examples

A file's words are hashed into every score that was given by it, so a changed rubric is another
rubric. `lint` checks that task types are treated alike.
"""

import hashlib
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mappa_core.core.errors import ConfigError

Points = Annotated[float, Field(ge=0, le=10)]
Words = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Criterion(_Part):
    """One thing that is marked by itself."""

    name: Words
    description: Words


class Band(_Part):
    """What the scores from `lowest` to `highest` mean."""

    lowest: Points
    highest: Points
    means: Words


class Step(_Part):
    """The highest score of an action whose metric reaches `bound`, or none of the better ones."""

    bound: float
    cap: Points


class Example(_Part):
    """A worked example."""

    situation: Words
    score: Points
    why: Words


class TaskType(_Part):
    """How one kind of work is scored."""

    floor: Points = 0.0
    cap: Points = 10.0
    metric: str | None = None
    """One of `lint.METRICS`; None where nothing is measured."""
    better: Literal["higher", "lower"] = "higher"
    scale: tuple[Step, ...] = ()
    """Best first."""
    otherwise: Points | None = None
    """The cap below the last step."""
    examples: tuple[Example, ...] = ()


class Rubric(_Part):
    """How the actions of one agent are judged."""

    version: int = Field(ge=1)
    agent: Words
    role: Words
    considers: tuple[Words, ...] = Field(min_length=1)
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    bands: tuple[Band, ...] = Field(min_length=1)
    task_types: Mapping[str, TaskType] = Field(min_length=1)

    def text(self) -> str:
        """The rubric as a coach reads it."""
        parts = [
            f"# The agent\n{self.role.strip()}",
            "# What to consider\n" + "\n".join(f"- {item}" for item in self.considers),
            "# Criteria\n" + "\n".join(f"- {c.name}: {c.description}" for c in self.criteria),
            "# Scores\n"
            + "\n".join(f"- {b.lowest:g} to {b.highest:g}: {b.means}" for b in self.bands),
            *(_task_type(name, kind) for name, kind in self.task_types.items()),
        ]
        return "\n\n".join(parts)


class RubricSet(_Part):
    """The rubrics of a team under one name."""

    name: str
    """The folder, e.g. `paper-1`; it ends with the version."""
    sha256: str
    """Of all files of the set."""
    rubrics: Mapping[str, Rubric]
    """By agent."""


def load_rubrics(team: str, name: str) -> RubricSet:
    """The rubric set `name` of `team`, from the package, or from a folder named by its path.

    Raises:
        ConfigError: There is no such set, or one of its files breaks the format.
    """
    folder: Traversable = Path(name) if "/" in name else files(__name__) / team / name
    if not folder.is_dir():
        raise ConfigError(f"team {team} has no rubric set {name}: choose {_choices(team)}")
    sources = {
        file.name.removesuffix(".yaml"): file.read_bytes()
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".yaml")
    }
    if not sources:
        raise ConfigError(f"rubric set {name} has no files <agent>.yaml: add one per agent")
    rubrics = {agent: parse_rubric(data, f"{name}/{agent}") for agent, data in sources.items()}
    for agent, rubric in rubrics.items():
        if rubric.agent != agent:
            raise ConfigError(f"{name}/{agent}.yaml is for agent {rubric.agent}: rename one")
    digest = hashlib.sha256(
        b"\0".join(x for kv in sources.items() for x in (kv[0].encode(), kv[1]))
    )
    return RubricSet(name=folder.name, sha256=digest.hexdigest(), rubrics=rubrics)


def reversed_rubrics(rubrics: RubricSet) -> RubricSet:
    """Put every list of the rubrics in the opposite order; they say the same."""
    return rubrics.model_copy(
        update={
            "name": f"{rubrics.name}, reversed",
            "rubrics": {
                agent: rubric.model_copy(
                    update={
                        "considers": rubric.considers[::-1],
                        "criteria": rubric.criteria[::-1],
                        "bands": rubric.bands[::-1],
                        "task_types": dict([*rubric.task_types.items()][::-1]),
                    }
                )
                for agent, rubric in rubrics.rubrics.items()
            },
        }
    )


def renamed_rubrics(rubrics: RubricSet, names: Mapping[str, str]) -> RubricSet:
    """Keep every rubric's words under another agent's name; `names` are the new by the old."""
    return rubrics.model_copy(
        update={
            "name": f"{rubrics.name}, renamed",
            "rubrics": {names[agent]: rubric for agent, rubric in rubrics.rubrics.items()},
        }
    )


def parse_rubric(data: bytes, source: str) -> Rubric:
    """Read one rubric file, which errors name as `source`.

    Raises:
        ConfigError: It is no YAML or breaks the format.
    """
    try:
        return Rubric.model_validate(yaml.safe_load(data))
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is no YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{source}: {where}: {first['msg']}") from None


def packaged_rubrics(team: str | None = None) -> tuple[tuple[str, str], ...]:
    """Team and name of every rubric set in the package, or of those of one team.

    Raises:
        ConfigError: The team has none.
    """
    found = tuple(
        (folder.name, entry.name)
        for folder in sorted(files(__name__).iterdir(), key=lambda folder: folder.name)
        if folder.is_dir() and team in (None, folder.name)
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.is_dir() and not entry.name.startswith("_")
    )
    if not found:
        raise ConfigError(f"there are no packaged rubrics for team {team}: name a folder as well")
    return found


def _choices(team: str) -> str:
    folder = files(__name__) / team
    if not folder.is_dir():
        return "a folder of your own, by its path"
    return ", ".join(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))


def _task_type(name: str, kind: TaskType) -> str:
    lines = [f"# Task type {name}", f"Scores from {kind.floor:g} to {kind.cap:g}."]
    sign = "at least" if kind.better == "higher" else "at most"
    lines += [
        f"- {kind.metric} {sign} {step.bound:g}: no more than {step.cap:g}" for step in kind.scale
    ]
    if kind.otherwise is not None:
        lines.append(f"- {kind.metric} worse than that: no more than {kind.otherwise:g}")
    lines += [f"- Example: {e.situation} Score {e.score:g}: {e.why}" for e in kind.examples]
    return "\n".join(lines)
