"""Keeps the files of episodes between their turns, as snapshots: every content once.

    contents/ab/abcdef...      bytes by sha256, shared by all episodes
    episodes/<id>/<turn>.json  {name: sha256} after that turn
    open/<id>                  the folder of the turn being played

A turn begins with a folder made from the last list, so a turn that was cut off leaves no trace, and
a resumed episode goes on from the files its recorded turns left.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from mappa_core.core.errors import ConfigError, DiskFull, WorkspaceError
from mappa_core.core.records.episodes import Episode
from mappa_core.rollout.protocols import ProblemSource, TaskSource
from mappa_core.rollout.source_table import SOURCES
from mappa_core.rollout.teams.base import Team

_LIST = TypeAdapter(dict[str, str])
_NO_SPACE = (28, 122)
"""ENOSPC and EDQUOT."""


class EpisodeFiles:
    """Keeps the files that a team works on: given by the tasks, kept below one folder."""

    def __init__(self, tasks: TaskSource, root: Path) -> None:
        self.tasks, self._root = tasks, root

    def open(self, episode: Episode) -> Path:
        """Make a folder as the episode's last turn left it, before the first with the task's files.

        Raises:
            WorkspaceError: What a recorded turn left is not here.
            DiskFull: It does not fit.
        """
        folder = self._root / "open" / str(episode.id)
        with _boundary(folder):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
            for name, data in self._files(episode).items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return folder

    def keep(self, episode: Episode, folder: Path) -> None:
        """Keep what the next turn of `episode` left in `folder`, and take the folder away.

        Raises:
            WorkspaceError: It cannot be read.
            DiskFull: It does not fit.
        """
        with _boundary(folder):
            found = sorted(path for path in folder.rglob("*") if _is_plain(path))
            names = {str(path.relative_to(folder)): self._keep_content(path) for path in found}
            _write(self._list(episode, len(episode.turns)), json.dumps(names).encode())
            shutil.rmtree(folder)

    def content(self, sha256: str) -> bytes:
        """Read a file that was kept.

        Raises:
            WorkspaceError: They are not here, or not what they were.
        """
        path = self._content(sha256)
        with _boundary(path):
            data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise WorkspaceError(f"{path} was changed after it was kept: restore it, or play again")
        return data

    def _files(self, episode: Episode) -> Mapping[str, bytes]:
        ran = [turn.index for turn in episode.turns if turn.tool_result is not None]
        if not ran:
            return self.tasks.files(episode.problem)
        try:
            names = _LIST.validate_json(self._list(episode, ran[-1]).read_bytes())
        except (OSError, ValidationError):
            raise WorkspaceError(
                f"the files that turn {ran[-1] + 1} of episode {episode.id} left are not below "
                f"{self._root}: resume with the MAPPA_HOME the run was started with"
            ) from None
        return {name: self.content(sha256) for name, sha256 in names.items()}

    def _keep_content(self, path: Path) -> str:
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        place = self._content(sha256)
        # One that was damaged is whole again, rather than the ruin of every later episode.
        if not place.exists() or place.read_bytes() != data:
            _write(place, data)
        return sha256

    def _content(self, sha256: str) -> Path:
        return self._root / "contents" / sha256[:2] / sha256

    def _list(self, episode: Episode, turn: int) -> Path:
        return self._root / "episodes" / str(episode.id) / f"{turn}.json"


def open_files(team: Team, problems: ProblemSource, root: Path) -> EpisodeFiles | None:
    """Open the files of a team that works on files, below `root`; None for one that answers.

    Raises:
        ConfigError: The team needs tasks with files and these problems have none, or the reverse.
    """
    works_on_files = any(agent.makes for agent in team.agents)
    if works_on_files != isinstance(problems, TaskSource):
        kind = "files" if works_on_files else "answers"
        sources = " or ".join(name for name, each in SOURCES.items() if each.works_on == kind)
        raise ConfigError(f"team {team.name} works on {kind}: set problems.source to {sources}")
    return EpisodeFiles(problems, root) if isinstance(problems, TaskSource) else None


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, also where another process writes it or the power goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        with half.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _boundary(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise DiskFull(f"no space left for {path}: make room, then resume") from error
        raise WorkspaceError(f"{path}: {error.strerror or error}") from error
