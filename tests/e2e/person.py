"""Types `mappa` as a person does, in a home of its own, and says what it took."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOK_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """One command that came to its end."""

    printed: str
    """What a script would read."""
    told: str
    """Progress and warnings, on the error stream."""
    seconds: float
    peak_gib: float
    """Of the command and all it started, what several share counted once."""


def command_of(*arguments: str) -> list[str]:
    """`mappa` as it is installed here, with `arguments`."""
    return [str(Path(sys.executable).with_name("mappa")), *arguments]


def environment_of(home: Path) -> dict[str, str]:
    """This process's environment, without servers and databases of others."""
    environment = {**os.environ, "MAPPA_HOME": str(home), "OMP_WAIT_POLICY": "passive"}
    for name in ("MAPPA_DATABASE_URL", "MLFLOW_TRACKING_URI", "PREFECT_API_URL"):
        environment.pop(name, None)
    return environment


def type_in(home: Path, *arguments: str, timeout: float) -> Typed:
    """Run `mappa` with `arguments` and its own servers in `home`; it must succeed."""
    begun, peak, ended = time.monotonic(), [0], threading.Event()
    with subprocess.Popen(
        command_of(*arguments),
        env=environment_of(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:

        def look() -> None:
            while not ended.wait(LOOK_SECONDS):
                peak.append(_bytes_of(process.pid))

        watching = threading.Thread(target=look)
        watching.start()
        try:
            printed, told = process.communicate(timeout=timeout)
        except BaseException:
            process.terminate()
            raise
        finally:
            ended.set()
            watching.join()
    assert process.returncode == 0, printed + told
    return Typed(
        printed=printed,
        told=told,
        seconds=time.monotonic() - begun,
        peak_gib=max(peak) / 2**30,
    )


def _bytes_of(pid: int) -> int:
    """Proportional set size of a process and its descendants."""
    total = 0
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for each in family:
        try:
            total += each.memory_full_info().pss
        except psutil.Error:
            continue
    return total
