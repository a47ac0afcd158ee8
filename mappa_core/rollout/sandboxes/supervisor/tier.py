"""A tier: one way to confine a program, and what it is told of the program about to start."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from mappa_core.core.records.tools import Limits
from mappa_core.rollout.sandboxes.supervisor.run_folder import PROGRAM, Interpreter, RunFolder

ARGUMENTS = ("-E", "-s", "-B", PROGRAM)
"""What the interpreter is started with: never the program's text."""
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT"), "1"
)
"""Numeric libraries would start a thread per core of the machine, in each of many runs at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A program about to start."""

    folder: RunFolder
    limits: Limits
    user: int
    in_cgroup: bool
    """Whether a control group holds the memory of the whole tree."""
    started: int
    """Pipe end; a byte says that the program is confined and about to run."""

    def variables(self, scratch: str, path: str, python: Interpreter) -> dict[str, str]:
        """The program's whole environment: nothing of ours is in it."""
        threads = _ONE_THREAD if self.folder.packages else dict[str, str]()
        return threads | {
            "PATH": f"{path}:/usr/bin:/bin",
            "HOME": scratch,
            "TMPDIR": scratch,
            "LANG": "C.UTF-8",
            **python.variables,
        }

    def become_python(self) -> NoReturn:
        """Become the program, for a tier that has confined this process itself."""
        binaries = self.folder.environment / "bin"
        variables = self.variables(str(self.folder.scratch), str(binaries), self.folder.python)
        os.write(self.started, b".")
        os.execve(binaries / "python", ["python", *ARGUMENTS], variables)  # noqa: S606


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One way to confine a program."""

    name: str
    seccomp: bool
    execute: Callable[[Launch], NoReturn]
    """Confine this process and become the program; called in a fresh child.

    Raises:
        OSError: The machine refused.
    """
    needs_private_folder: bool = False
    """The others take one where there is one."""
    python_home: Path | None = None
    """Where the program finds its interpreter; None where it is for us as well."""
    signal_base: int = 0
    """Exit codes above this stand for signals; 0 where the real status arrives."""

    def python_inside(self, folder: RunFolder) -> Interpreter:
        """The interpreter as the program sees it."""
        return replace(folder.python, home=self.python_home or folder.python.home)


def _execute_unconfined(launch: Launch) -> NoReturn:
    os.chdir(launch.folder.workspace)
    launch.become_python()


UNSAFE = Tier(name="unsafe-subprocess", seccomp=False, execute=_execute_unconfined)
"""No sandbox: a plain process with limits, for those that ask for it by name. The program can read,
write and signal whatever its user can, and reach the network."""
