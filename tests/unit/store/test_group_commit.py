"""Who writes at once is committed together, and one's mistake is nobody else's."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from mappa_core.core.errors import DiskFull, StoreError, StoreUnreachable
from mappa_core.store.group_commit import GroupCommit
from mappa_core.store.insert import Rows
from mappa_core.store.tables import RUN


def named(name: str) -> Rows:
    return {RUN: [{"name": name}]}


def names(rows: Rows) -> list[object]:
    return [row["name"] for row in rows.get(RUN, [])]


class Disk:
    """Commits when it is let go; refuses whatever holds `bad`."""

    def __init__(self) -> None:
        self.busy, self.free = Event(), Event()
        self.commits: list[list[object]] = []

    def commit(self, rows: Rows) -> None:
        self.busy.set()
        assert self.free.wait(10)
        if "bad" in names(rows):
            raise StoreError("refused")
        self.commits.append(names(rows))


def write_while_busy(disk: Disk, group: GroupCommit, *later: str) -> list[BaseException | None]:
    """Write `first`, and all of `later` while the disk is busy with it."""
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(group.write, named("first"))]
        assert disk.busy.wait(10)
        futures += [pool.submit(group.write, named(name)) for name in later]
        while len(group._waiting) < len(later):  # noqa: SLF001
            pass
        disk.free.set()
        return [future.exception(10) for future in futures]


def test_what_waits_is_committed_together() -> None:
    disk = Disk()
    errors = write_while_busy(disk, GroupCommit(disk.commit), "a", "b", "c")
    assert errors == [None] * 4
    assert disk.commits[0] == ["first"]
    assert sorted(map(str, disk.commits[1])) == ["a", "b", "c"]
    assert len(disk.commits) == 2


def test_only_the_one_at_fault_hears_of_it() -> None:
    disk = Disk()
    first, good, bad = write_while_busy(disk, GroupCommit(disk.commit), "good", "bad")
    assert (first, good) == (None, None)
    assert isinstance(bad, StoreError)
    assert disk.commits == [["first"], ["good"]]


def test_nobody_is_told_that_it_is_durable_when_postgres_is_away() -> None:
    def away(rows: Rows) -> None:
        raise StoreUnreachable("gone")

    with pytest.raises(StoreUnreachable):
        GroupCommit(away).write(named("a"))


def test_what_fails_one_by_one_reaches_its_writer_and_lets_none_wait() -> None:
    class Full(Disk):
        def commit(self, rows: Rows) -> None:
            super().commit(rows)
            if names(rows) == ["full"]:
                raise DiskFull("no space left")

    disk = Full()
    first, good, full, bad = write_while_busy(disk, GroupCommit(disk.commit), "good", "full", "bad")
    assert (first, good) == (None, None)
    assert isinstance(full, DiskFull)
    assert isinstance(bad, StoreError)
