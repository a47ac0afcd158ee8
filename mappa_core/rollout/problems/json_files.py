"""Problems from JSON files in the AIME and AMC layout: a list of {prompt, answer, ...}.

Answers may be text or numbers; 142.0 means 142. An answer in prose is kept as it is: it will match
no boxed answer, so such a problem counts as unsolved.

What a row or its file's name says of contest, year, paper (I or II), number and difficulty are the
problem's attributes. A problem's task type is its contest and, where the row names its place, the
third of the contest it is in: `aime early` is problems 1 to 5. AIME and AMC papers get harder from
problem to problem.

Two transcriptions of one contest rarely agree to the letter: spaces, a drawing, a clause differ.
Among the 933 AIME problems of 1983-2024 no two are more similar than 0.7; the 18 that
`aime_eval_32` repeats are 0.94 or more, and its other 14 are below 0.5.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, StringConstraints, TypeAdapter, ValidationError

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem
from mappa_core.core.text import jaccard_similarity
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems.base import FixedProblems, read_text
from mappa_core.rollout.problems.drawing import in_turn

SAME = 0.8
"""Jaccard similarity in [0, 1] from which two statements count as one problem."""

LENGTHS = {"aime": 15, "amc": 25}
"""Problems of one paper, by contest."""
THIRDS = ("early", "middle", "late")

_PAGE = re.compile(r"(?P<year>\d{4})_(?P<words>\w+)_Problems/Problem_(?P<number>\d+)$")
"""The address of a problem's page, e.g. .../2023_AIME_II_Problems/Problem_7."""
_PAPER = re.compile(r"(?:^|_)(?P<paper>I{1,2}|\d+[AB])(?:_|$)")
_YEAR = re.compile(r"(?:^|_)(?P<year>(?:19|20)\d{2})$")
"""At the end of a file's name that has no other: aime_2025, and not AIME_1983_2024."""
_DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL | re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+|\d+")
_DEGREES = re.compile(r"\^\s*(?:\{\s*)?\\(?:circ|degree)(?:\s*\})?|°")


def _answer_text(answer: object) -> str:
    match answer:
        case str():
            return _DEGREES.sub("", answer)
        case float() if answer.is_integer():
            return str(int(answer))
        case float() if math.isfinite(answer):
            return str(answer)
        case int() if not isinstance(answer, bool):
            return str(answer)
        case _:
            raise ValueError("should be text or a finite number")


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Row(BaseModel):
    prompt: Text
    answer: Annotated[Text, BeforeValidator(_answer_text)]
    problem_number: int | None = None
    """Its place in the contest, from 1."""
    year: int | None = None
    part: str | None = None
    """The paper of its year: I or II."""
    url: str | None = None
    """The page of the problem, which names year, contest and place."""

    def attributes(self, path: Path) -> Mapping[str, str | int]:
        """What is known of it, by name; what neither row nor file name says is left out."""
        contest, paged = contest_of(path), _PAGE.search(self.url or "")
        paper = _PAPER.search(paged["words"]) if paged else None
        named = _YEAR.search(path.stem)
        if named and _YEAR.search(path.stem[: named.start()]):
            named = None
        number = _first_said(self.problem_number, paged and int(paged["number"]))
        third = third_of(contest, number)
        said = {
            "contest": contest,
            "year": _first_said(
                self.year, paged and int(paged["year"]), named and int(named["year"])
            ),
            "paper": _first_said(self.part, paper and paper["paper"]),
            "number": number,
            "difficulty": THIRDS[third - 1] if third else None,
        }
        return {name: value for name, value in said.items() if value is not None}


_ROWS = TypeAdapter(list[_Row])
Said = TypeVar("Said")


def _first_said(*said: Said | None) -> Said | None:
    return next((one for one in said if one is not None), None)


def open_problems(config: ProblemsConfig, workspace_mib: int | None) -> FixedProblems:  # noqa: ARG001
    """Read all files.

    Raises:
        ConfigError: A file is missing or not in the layout, or the sets share problems and may not,
            or share all of them.
    """
    if not config.train_files or not config.held_out_files:
        raise ConfigError(
            "problems.source=json needs problems.train_files and problems.held_out_files"
        )
    train, held_out = _read_all(config.train_files), _read_all(config.held_out_files)
    shared = _shared(train, held_out)
    repeated = sum(problem in shared for problem in held_out)
    if repeated and not config.drop_overlap:
        raise ConfigError(
            f"{repeated} held-out problems are also in the training files: choose other "
            "files, or set problems.drop_overlap=true to leave them out of training"
        )
    disjoint = [problem for problem in train if problem not in shared]
    if not disjoint:
        raise ConfigError(
            "every training problem is also held out: nothing is left to train on; choose "
            "other problems.train_files"
        )
    return FixedProblems(
        _chosen(disjoint, config.train_size, config),
        _chosen(held_out, config.held_out_size, config),
    )


def _chosen(problems: Sequence[Problem], size: int, config: ProblemsConfig) -> Sequence[Problem]:
    if config.sample == "first":
        return problems[:size]
    return in_turn(problems, size, config.seed, lambda problem: problem.task_type, _decade)


def _decade(problem: Problem) -> str:
    """Contests have changed over the years, and neighbouring ones hardly."""
    year = problem.attributes.get("year")
    return "" if year is None else str(int(year) // 10)


def _read_all(paths: Sequence[Path]) -> list[Problem]:
    """The problems of all files in order, each once."""
    problems = (_problem(path, row) for path in paths for row in _rows(path))
    return list({problem.id: problem for problem in problems}.values())


def _rows(path: Path) -> list[_Row]:
    text = read_text(path)
    try:
        rows = _ROWS.validate_python(json.loads(text))
    except ValidationError as error:
        raise ConfigError(f"problem file {path}{_first(error)}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"problem file {path} is not JSON that can be read: {error}; it should be a list of "
            '{"prompt": ..., "answer": ...}'
        ) from None
    if not rows:
        raise ConfigError(f"problem file {path} holds no problems: it is an empty list")
    return rows


def _first(error: ValidationError) -> str:
    """The first thing that is wrong; rows are counted from 1."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ").lower()
    match first["loc"]:
        case (int(row), *keys):
            key = ".".join(map(str, keys))
            reason = f"{key}: {message}" if key else 'should be {"prompt": ..., "answer": ...}'
            return f", row {row + 1}: {reason}"
        case _:
            return ' should be a list of {"prompt": ..., "answer": ...}'


def _problem(path: Path, row: _Row) -> Problem:
    contest, attributes = contest_of(path), row.attributes(path)
    difficulty = attributes.get("difficulty")
    return Problem(
        id=ids.problem_id(row.prompt),
        dataset=contest,
        task_type=f"{contest} {difficulty}" if difficulty else contest,
        level=THIRDS.index(str(difficulty)) + 1 if difficulty else 0,
        statement=row.prompt,
        answer=row.answer,
        attributes=attributes,
    )


def contest_of(path: Path) -> str:
    """The contest that a problem file is of: the first word of its name."""
    return path.stem.lower().split("_")[0]


def third_of(contest: str, number: int | None) -> int:
    """The third of its contest that a problem is in, 1 to 3; 0 where that is not known.

    Problems of AIME and AMC are set in order of difficulty.
    """
    length = LENGTHS.get(contest)
    if number is None or length is None or not 1 <= number <= length:
        return 0
    return 1 + 3 * (number - 1) // length


def _shared(train: Sequence[Problem], held_out: Sequence[Problem]) -> set[Problem]:
    """The problems of both sets that the other one has too, by content or by similarity."""
    training = [(problem, _words(problem)) for problem in train]
    measuring = [(problem, _words(problem)) for problem in held_out]
    return {
        twin
        for one, words in training
        for other, others in measuring
        if one.id == other.id or (words and jaccard_similarity(words, others) >= SAME)
        for twin in (one, other)
    }


def _words(problem: Problem) -> frozenset[str]:
    return frozenset(_WORD.findall(_DRAWING.sub(" ", problem.statement.casefold())))
