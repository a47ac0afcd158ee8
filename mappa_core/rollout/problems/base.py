"""What the sources of problems share: two fixed sets, and the reading of their files."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem


class FixedProblems:
    """A problem source whose two sets are settled when it is made."""

    def __init__(self, train: Sequence[Problem], held_out: Sequence[Problem]) -> None:
        self._train, self._held_out = tuple(train), tuple(held_out)

    def train(self) -> tuple[Problem, ...]:
        """Problems to learn from, in a fixed order."""
        return self._train

    def held_out(self) -> tuple[Problem, ...]:
        """Problems to measure on, in a fixed order."""
        return self._held_out


def read_text(path: Path) -> str:
    """The text of a problem file.

    Raises:
        ConfigError: It cannot be read, or is not UTF-8.
    """
    with reading(f"problem file {path}"):
        return path.read_text(encoding="utf-8")


@contextmanager
def reading(file: str) -> Generator[None]:
    """Refuse a file that cannot be read inside the block, or is not UTF-8."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text: save it as UTF-8") from None
