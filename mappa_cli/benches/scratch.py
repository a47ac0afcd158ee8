"""What the benches of databases share: how many actions, and a database of their own."""

import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mappa_cli.benches import bench_options
from mappa_core.app.fitting import check_space
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.store.embedded import start_embedded
from mappa_core.store.schema import upgrade

ACTIONS = 1_000_000


def actions_option(bench: str, overrides: Sequence[str], fewest: int) -> int:
    """How many actions a bench shall store: a million, or what `actions=NUMBER` says.

    Raises:
        ConfigError: Another override, or fewer than `fewest`.
    """
    number = bench_options(bench, overrides, actions=str(ACTIONS))["actions"]
    if not number.isdecimal() or int(number) < fewest:
        raise ConfigError(f"bench {bench} takes actions=NUMBER, at least {fewest}")
    return int(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchDatabase:
    """An embedded Postgres with an empty store."""

    home: Path
    """A `MAPPA_HOME` that uses it."""
    url: str


@contextmanager
def scratch_database(settings: Settings, spare_bytes: int) -> Generator[ScratchDatabase]:
    """Start a database below the home for the block, and remove it at the end.

    Raises:
        DiskFull: There is no room for `spare_bytes`.
    """
    check_space(settings.home, spare_bytes=spare_bytes + 2**30)
    settings.home.mkdir(parents=True, exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="bench-", dir=settings.home))
    # Postgres may have to run as another user.
    home.chmod(0o711)
    try:
        with start_embedded(home / "postgres") as server:
            upgrade(server.url("mappa"))
            yield ScratchDatabase(home=home, url=server.url("mappa"))
    finally:
        shutil.rmtree(home)
