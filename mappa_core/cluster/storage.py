"""Checkpoints where all nodes of a cluster see them: `cluster.storage`, read by pyarrow.

    s3://bucket/prefix    gs://bucket/prefix    file:///shared/prefix

    rank 0 ─▶ STORAGE/RUN/AGENT/STEP ─▶ the nodes that serve it, and those that go on from it
                                     ─▶ the run's own machine, for the registry and a resumed run

The manifest is written last: what has none is not there. A node keeps what it fetched in its
MAPPA_HOME, the last steps of each agent.
"""

import fcntl
import shutil
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from mappa_core.core.errors import ClusterError
from mappa_core.models.layout import MANIFEST

FileSystem: TypeAlias = Any
"""One of pyarrow, which has no types."""
KEPT_STEPS = 2
"""Of each agent on a node; one step off, the older one is served yet."""
_PROBE = ".mappa"


@dataclass(frozen=True, kw_only=True)
class Storage:
    """A place of checkpoints, each under the path that it has below `root` on the run's machine."""

    url: str
    root: str

    def check(self) -> None:
        """Write something there and read it again.

        Raises:
            ClusterError: That does not work.
        """
        system, top = self._system
        with self._named("use"):
            system.create_dir(top, recursive=True)
            with system.open_output_stream(f"{top}/{_PROBE}") as out:
                out.write(b"mappa")
            with system.open_input_stream(f"{top}/{_PROBE}") as found:
                found.read()
            system.delete_file(f"{top}/{_PROBE}")

    def upload(self, directory: Path, local: Path) -> None:
        """Store the files in `local` as the checkpoint `directory`.

        Raises:
            ClusterError: They cannot be written.
        """
        system, place = self._place(directory)
        files = sorted(local.iterdir(), key=lambda file: file.name == MANIFEST)
        with self._named("write to"):
            system.create_dir(place, recursive=True)
            if MANIFEST in self._names(system, place):
                system.delete_file(f"{place}/{MANIFEST}")
            for file in files:
                _copy(_local(), str(file), system, f"{place}/{file.name}")

    def has(self, directory: Path) -> bool:
        """Tell whether the checkpoint `directory` is there.

        Raises:
            ClusterError: The storage cannot be read.
        """
        system, place = self._place(directory)
        with self._named("read"):
            return MANIFEST in self._names(system, place)

    def fetch(self, directory: Path, into: Path, *, without: Collection[str] = ()) -> None:
        """Have the checkpoint `directory` in the folder `into`, whole or not at all.

        `without` names files that are not needed. What is there already, by the manifest, stays.

        Raises:
            ClusterError: It is not stored, or cannot be read.
        """
        system, place = self._place(directory)
        into.parent.mkdir(parents=True, exist_ok=True)
        with _locked(into.parent), self._named("read"):
            names = self._names(system, place)
            if MANIFEST not in names:
                raise ClusterError(f"{self.url} has no checkpoint {self._relative(directory)}")
            with system.open_input_stream(f"{place}/{MANIFEST}") as stored:
                manifest = stored.read()
            there = into / MANIFEST
            if there.exists() and there.read_bytes() == manifest:
                return
            scratch = Path(tempfile.mkdtemp(prefix=".fetching-", dir=into.parent))
            try:
                for name in names - set(without):
                    _copy(system, f"{place}/{name}", _local(), f"{scratch}/{name}")
                shutil.rmtree(into, ignore_errors=True)
                scratch.rename(into)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    def on_node(self, directory: Path, home: Path, *, without: Collection[str] = ()) -> Path:
        """Have it on this node, with earlier ones of its agent removed; returns the folder.

        Raises:
            ClusterError: As `fetch`.
        """
        into = self.node_place(directory, home, whole=not without)
        self.fetch(directory, into, without=without)
        drop_earlier(into)
        return into

    def node_place(self, directory: Path, home: Path, *, whole: bool = True) -> Path:
        """Name the folder that a node has it in, below its own home."""
        return home / "fetched" / ("whole" if whole else "served") / self._relative(directory)

    def remove(self, directory: Path) -> None:
        """Remove it, its manifest first.

        Raises:
            ClusterError: It is there and stays.
        """
        system, place = self._place(directory)
        with self._named("remove from"):
            names = self._names(system, place)
            for name in sorted(names, key=lambda name: name != MANIFEST):
                system.delete_file(f"{place}/{name}")
            if names:
                system.delete_dir_contents(place, missing_dir_ok=True)

    @cached_property
    def _system(self) -> tuple[FileSystem, str]:
        from pyarrow import ArrowInvalid, fs

        try:
            system, top = fs.FileSystem.from_uri(self.url)
        except (ArrowInvalid, OSError, TypeError) as error:
            raise ClusterError(f"cannot use cluster.storage={self.url}: {error}") from error
        return system, top.rstrip("/")

    def _relative(self, directory: Path) -> Path:
        try:
            return directory.relative_to(self.root)
        except ValueError as error:
            raise ClusterError(f"{directory} is not in {self.root}: it is not stored") from error

    def _place(self, directory: Path) -> tuple[FileSystem, str]:
        system, top = self._system
        return system, f"{top}/{self._relative(directory)}"

    def _names(self, system: FileSystem, place: str) -> set[str]:
        from pyarrow.fs import FileSelector

        found = system.get_file_info(FileSelector(place, allow_not_found=True))
        return {one.base_name for one in found if one.is_file}

    @contextmanager
    def _named(self, what: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            said = " ".join(str(error).split())[:200]
            raise ClusterError(f"cannot {what} {self.url}: {said}") from error


def drop_earlier(step: Path) -> None:
    """Remove an agent's checkpoints from before the folder `step`, all but the last ones."""
    steps = sorted((each for each in step.parent.iterdir() if each.name.isdigit()), key=_number)
    upto = [each for each in steps if _number(each) <= _number(step)]
    for each in upto[:-KEPT_STEPS]:
        shutil.rmtree(each, ignore_errors=True)


def _number(step: Path) -> int:
    return int(step.name)


def _local() -> FileSystem:
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


def _copy(source: FileSystem, name: str, target: FileSystem, as_name: str) -> None:
    from pyarrow.fs import copy_files

    copy_files(name, as_name, source_filesystem=source, destination_filesystem=target)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Be alone with a folder, among the processes of this machine."""
    with (folder / ".lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
