"""Files between turns: kept by content, found again after a crash, never silently other ones."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from mappa_core.core.errors import WorkspaceError
from mappa_core.core.records.episodes import Episode, Problem
from mappa_core.rollout.episode_files import EpisodeFiles
from tests.builders import (
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_tool_result,
    make_turn,
)
from tests.full_disk import largest_file

RUN = make_run()
EPISODE = make_episode(RUN, make_problem())
RAN = EPISODE.with_turn(make_turn(make_policy(RUN), tool_result=make_tool_result()))
TALKED = RAN.with_turn(make_turn(make_policy(RUN), 1))


@pytest.fixture
def files(tmp_path: Path) -> EpisodeFiles:
    return EpisodeFiles(Given(), tmp_path)


class Given:
    """Tasks that all come with the same files."""

    def __init__(self) -> None:
        self.given: Mapping[str, bytes] = {}

    def train(self) -> tuple[Problem, ...]:
        return ()

    def held_out(self) -> tuple[Problem, ...]:
        return ()

    def files(self, problem: Problem) -> Mapping[str, bytes]:
        return self.given

    def labels(self, problem: Problem) -> bytes:
        return b""


def opened(files: EpisodeFiles, episode: Episode, given: Mapping[str, bytes]) -> Path:
    """The folder of an episode whose task comes with `given`."""
    assert isinstance(files.tasks, Given)
    files.tasks.given = given
    return files.open(episode)


def names(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_it_begins_with_the_tasks_files_and_goes_on_with_what_was_left(files):
    folder = opened(files, EPISODE, {"train.csv": b"1", "d/x": b"2"})
    assert names(folder) == {"train.csv": b"1", "d/x": b"2"}
    (folder / "d/x").unlink()
    (folder / "new").write_bytes(b"3")
    files.keep(EPISODE, folder)
    assert not folder.exists()
    for later in (RAN, TALKED):
        again = opened(files, later, {"train.csv": b"other"})
        assert names(again) == {"train.csv": b"1", "new": b"3"}


def test_a_turn_that_was_cut_off_leaves_no_trace(files):
    folder = opened(files, EPISODE, {"a": b"1"})
    (folder / "rubbish").write_bytes(b"x")
    assert names(opened(files, EPISODE, {"a": b"1"})) == {"a": b"1"}


def test_equal_contents_are_kept_once(files, tmp_path: Path):
    for _ in range(2):
        files.keep(EPISODE, opened(files, EPISODE, {"a": b"same", "b": b"same"}))
    assert len(list(tmp_path.glob("contents/*/*"))) == 1


def test_episodes_may_keep_the_same_content_at_once(files, tmp_path: Path):
    played = [make_episode(RUN, make_problem(), rollout_index=index) for index in range(8)]
    ready = Barrier(len(played))

    def keep(episode, folder: Path) -> None:
        ready.wait()
        files.keep(episode, folder)

    for round_ in range(5):
        data = bytes([round_]) * 2_000_000
        folders = [opened(files, episode, {"train.csv": data}) for episode in played]
        with ThreadPoolExecutor(len(played)) as pool:
            list(pool.map(keep, played, folders))
    kept = list(tmp_path.rglob("contents/*/*"))
    assert len(kept) == 5
    assert all(files.content(path.name) for path in kept)


def test_a_damaged_content_is_mended_by_the_next_episode_that_leaves_it(files, tmp_path: Path):
    files.keep(EPISODE, opened(files, EPISODE, {"a": b"1"}))
    (kept,) = tmp_path.glob("contents/*/*")
    for damage in (b"", b"2"):
        kept.write_bytes(damage)
        files.keep(EPISODE, opened(files, EPISODE, {"a": b"1"}))
        assert names(opened(files, RAN, {})) == {"a": b"1"}


def test_a_full_disk_leaves_no_half_of_a_file(files, tmp_path: Path):
    folder = opened(files, EPISODE, {"a": b"1" * 9000})
    with largest_file(1000), pytest.raises(WorkspaceError, match="File too large"):
        files.keep(EPISODE, folder)
    assert not [path for path in (tmp_path / "contents").rglob("*") if path.is_file()]


def test_a_link_is_not_followed(files, tmp_path: Path):
    (tmp_path / "secret").write_text("label")
    folder = opened(files, EPISODE, {})
    (folder / "link").symlink_to(tmp_path / "secret")
    files.keep(EPISODE, folder)
    assert names(opened(files, RAN, {})) == {}


def test_files_that_are_gone_or_changed_are_refused(files, tmp_path: Path):
    with pytest.raises(WorkspaceError, match="MAPPA_HOME"):
        opened(files, RAN, {})
    files.keep(EPISODE, opened(files, EPISODE, {"a": b"1"}))
    (kept,) = tmp_path.glob("contents/*/*")
    assert files.content(kept.name) == b"1"
    kept.write_bytes(b"2")
    with pytest.raises(WorkspaceError, match="was changed"):
        opened(files, RAN, {})
    kept.unlink()
    with pytest.raises(WorkspaceError, match="No such file"):
        files.content(kept.name)
