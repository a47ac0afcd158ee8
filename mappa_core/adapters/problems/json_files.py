"""Problems from JSON files in the AIME and AMC layout: a list of {prompt, answer, ...}.

Answers may be text or numbers; 142.0 means 142. An answer in prose is kept as it is: it will match
no boxed answer, so such a problem counts as unsolved.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from mappa_core.config import ProblemsConfig
from mappa_core.domain import ids
from mappa_core.domain.errors import ConfigError
from mappa_core.domain.records import Problem

Answer = Annotated[str | int | float, Field(union_mode="left_to_right")]


class _Row(BaseModel):
    prompt: str = Field(min_length=1)
    answer: Answer


_ROWS = TypeAdapter(list[_Row])


class JsonProblems:
    """Files as a problem source."""

    def __init__(self, config: ProblemsConfig) -> None:
        """Read all files.

        Raises:
            ConfigError: A file is missing or not in the layout, or the sets share problems.
        """
        if not config.train_files or not config.held_out_files:
            raise ConfigError(
                "problems.source=json needs problems.train_files and problems.held_out_files"
            )
        train = _unique(_read_all(config.train_files))
        held_out = _unique(_read_all(config.held_out_files))
        shared = {problem.id for problem in train} & {problem.id for problem in held_out}
        if shared and not config.drop_overlap:
            raise ConfigError(
                f"{len(shared)} held-out problems are also in the training files: choose other "
                "files, or set problems.drop_overlap=true to leave them out of training"
            )
        disjoint = [problem for problem in train if problem.id not in shared]
        self._train = tuple(disjoint[: config.train_size])
        self._held_out = tuple(held_out[: config.held_out_size])

    def train(self) -> tuple[Problem, ...]:
        """Problems to learn from, in a fixed order."""
        return self._train

    def held_out(self) -> tuple[Problem, ...]:
        """Problems to measure on, in a fixed order."""
        return self._held_out


def _unique(problems: Iterator[Problem]) -> list[Problem]:
    return list({problem.id: problem for problem in problems}.values())


def _read_all(paths: Sequence[Path]) -> Iterator[Problem]:
    for path in paths:
        yield from (_problem(path, row) for row in _rows(path))


def _rows(path: Path) -> list[_Row]:
    try:
        return _ROWS.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"problem file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"problem file {path} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"problem file {path} is not JSON: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "top"
        raise ConfigError(f"problem file {path}, row {where}: {first['msg']}") from None


def _problem(path: Path, row: _Row) -> Problem:
    dataset = path.stem.lower().split("_")[0]
    return Problem(
        id=ids.problem_id(row.prompt),
        dataset=dataset,
        task_type=dataset,
        level=0,
        statement=row.prompt,
        answer=_answer_text(row.answer),
    )


def _answer_text(answer: str | float) -> str:
    if isinstance(answer, float) and answer.is_integer():
        return str(int(answer))
    return str(answer).strip().replace("^\\circ", "").replace("°", "")
