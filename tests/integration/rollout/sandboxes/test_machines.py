"""The sandbox on other machines than this one: without root, without bubblewrap, without mounts.

Each is made out of this one with `setpriv` and an outer bubblewrap around the whole of MAPPA's
sandbox, so these tests need both.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import mappa_core
from tests.backends import absent

PRELUDE = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from mappa_core.rollout.sandboxes.local import LocalSandbox
from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Limits

async def main():
    sandbox = LocalSandbox(sys.argv[2], 4)
    await sandbox.start()
    try:
        results = await asyncio.gather(*(sandbox.run(c, None, Limits(
            wall_seconds=5, memory_bytes=128 << 20, processes=16)) for c in sys.argv[3:]))
        print(json.dumps([sandbox.tier, [[r.status, r.stdout, r.stderr] for r in results]]))
    except SandboxError as error:
        print(json.dumps([sandbox.tier, str(error)]))
    await sandbox.close()

asyncio.run(main())
"""
MEMORY = "x = []\nwhile True: x.append(bytearray(4 << 20))"
FORKS = """
import os, time
n = 0
try:
    while True:
        if not os.fork(): time.sleep(5); os._exit(0)
        n += 1
except OSError: print(n)
"""
SIGNAL = """
import os
try: os.kill(os.getppid(), 9)
except OSError: print("refused")
"""
OUTSIDE = """
for path in ("/etc/passwd", "/proc/1/status"):
    try: print(open(path).read())
    except OSError: print("refused")
"""
USER = 12_345


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The package where every user can read it, and room to run."""
    with tempfile.TemporaryDirectory(prefix="mappa-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        package = Path(mappa_core.__file__).parent
        shutil.copytree(package / "core", folder / "mappa_core/core")
        shutil.copytree(package / "rollout/sandboxes", folder / "mappa_core/rollout/sandboxes")
        for part in ("mappa_core", "mappa_core/rollout"):
            (folder / part / "__init__.py").touch()
        yield folder


def needs(condition: bool, reason: str) -> None:
    if not condition:
        absent("bubblewrap", reason)


def reachable_python() -> str:
    """An interpreter that an ordinary user may run; a virtual environment below /root is not."""
    base = f"{sys.base_prefix}/bin/python3"
    for candidate in (base, "/usr/bin/python3"):
        parents = Path(candidate).resolve().parents
        if all(parent.stat().st_mode & 0o001 for parent in parents):
            probe = [candidate, "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
            if subprocess.run(probe, check=False).returncode == 0:
                return candidate
    pytest.skip("no Python 3.11 that an ordinary user may run")


def play(prefix: list[str], python: str, folder: Path, backend: str, *programs: str):
    command = [*prefix, python, "-S", "-B", "-c", PRELUDE, str(folder), backend, *programs]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    ids = ["--reuid", str(USER), "--regid", str(USER)]
    return ["setpriv", *ids, "--clear-groups", "--inh-caps=-all"]


def without_namespaces() -> list[str]:
    """An outer world in which user namespaces cannot be made, like a default container."""
    user = str(USER if os.geteuid() == 0 else os.geteuid())
    outer = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
    return [*outer, "--uid", user, "--gid", user]


def without_bubblewrap() -> list[str]:
    hidden = str(Path(shutil.which("bwrap") or "").resolve())
    return ["bwrap", "--dev-bind", "/", "/", "--ro-bind", "/dev/null", hidden]


@pytest.fixture(autouse=True)
def tools() -> None:
    needs(bool(shutil.which("bwrap") and shutil.which("setpriv")), "needs bubblewrap and setpriv")


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock"])
def test_an_ordinary_user(folder: Path, backend: str):
    programs = ("print(1)", MEMORY, FORKS, SIGNAL, OUTSIDE)
    tier, results = play(as_user(), reachable_python(), folder, backend, *programs)
    assert tier.split("+")[0] == backend
    one, memory, forks, _, outside = results
    assert one == ["ok", "1\n", ""]
    assert memory[0] == "out_of_memory"
    assert 8 <= int(forks[1]) <= 19
    assert "root:" not in outside[1]


def test_landlock_without_mounts_nor_namespaces(folder: Path):
    programs = ("print(1)", MEMORY, FORKS, SIGNAL, OUTSIDE)
    prefix = [*as_user(), *without_namespaces()]
    tier, results = play(prefix, reachable_python(), folder, "landlock", *programs)
    assert tier == "landlock+seccomp"
    one, memory, forks, signal, outside = results
    assert one == ["ok", "1\n", ""]
    assert memory[0] == "out_of_memory"
    assert int(forks[1]) <= 80  # the user's other processes, of four more runs, come and go
    assert signal[1] == "refused\n"
    assert outside[1] == "refused\nrefused\n"
    assert not list(Path(tempfile.gettempdir()).glob("mappa-run-*"))


REACH = """
import os, resource
def attempt(*calls):
    for call in calls:
        try: call()
        except OSError: pass
attempt(
    lambda: os.chmod(FOLDER, 0), lambda: os.chmod(FILE, 0), lambda: os.utime(FILE, (1, 1)),
    lambda: os.setxattr(FILE, "user.note", b"for the next run"),
    lambda: resource.prlimit(VICTIM, resource.RLIMIT_CPU, (0, 0)),
    lambda: os.setpriority(os.PRIO_PROCESS, VICTIM, 19),
    lambda: os.sched_setscheduler(VICTIM, os.SCHED_IDLE, os.sched_param(0)),
)
import shutil
shutil.copy("main.py", "copy.py"); os.nice(1); resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("attempted")
"""


@pytest.fixture
def belongings() -> Iterator[Path]:
    """A folder of the user that programs run as, with a file in it."""
    with tempfile.TemporaryDirectory(prefix="mappa-test-", dir="/var/tmp") as name:
        Path(name, "file").touch(mode=0o600)
        for path in (Path(name, "file"), Path(name)):
            os.chown(path, *(2 * [USER] if os.geteuid() == 0 else [-1, -1]))
        yield Path(name)


@pytest.mark.parametrize("namespaces", [True, False])
@pytest.mark.parametrize("backend", ["landlock", "bubblewrap"])
def test_what_else_is_the_users_stays_as_it_is(
    folder: Path, belongings: Path, backend: str, *, namespaces: bool
):
    if backend == "bubblewrap" and not namespaces:
        pytest.skip("it is nothing without them")

    def state() -> tuple[object, ...]:
        found = [path.stat() for path in (belongings, belongings / "file")]
        return (
            [(one.st_mode, one.st_uid, one.st_mtime, one.st_ctime) for one in found],
            os.listxattr(belongings / "file"),
            Path(f"/proc/{victim.pid}/limits").read_text(),
            os.getpriority(os.PRIO_PROCESS, victim.pid),
            os.sched_getscheduler(victim.pid),
        )

    with subprocess.Popen([*as_user(), "sleep", "60"]) as victim, ExitStack() as stack:
        stack.callback(victim.kill)
        code = REACH.replace("FOLDER", repr(str(belongings)))
        code = code.replace("FILE", repr(f"{belongings}/file")).replace("VICTIM", str(victim.pid))
        before = state()
        prefix = [*as_user(), *([] if namespaces else without_namespaces())]
        _, results = play(prefix, reachable_python(), folder, backend, code)
        assert (results, state()) == ([["ok", "attempted\n", ""]], before)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to take root's rights away")
def test_root_without_rights(folder: Path):
    """As in a container with every capability dropped."""
    prefix = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    tier, results = play(
        prefix, reachable_python(), folder, "landlock", "print(1)", SIGNAL, OUTSIDE
    )
    assert tier.split("+")[0] == "landlock"
    assert [result[1] for result in results] == ["1\n", "refused\n", "refused\nrefused\n"]


def test_bubblewrap_that_cannot_make_namespaces_is_a_failure_not_a_result(folder: Path):
    prefix = [*as_user(), *without_namespaces()]
    _, error = play(prefix, reachable_python(), folder, "bubblewrap", "print(1)")
    assert "docs/security.md" in error


CHOOSE = """
import asyncio, sys
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.core.errors import SandboxUnavailable

async def main():
    try:
        sandbox = await choose_sandbox(sys.argv[1], 1)
    except SandboxUnavailable as error:
        print(error)
    else:
        print(sandbox.tier)
        await sandbox.close()

asyncio.run(main())
"""


def choose(prefix: list[str], backend: str) -> str:
    command = [*prefix, sys.executable, "-c", CHOOSE, backend]
    # A Docker Engine would come before what is tried here.
    environment = os.environ | {"DOCKER_HOST": "unix:///nowhere"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    return done.stdout.strip()


def test_auto_takes_the_strongest_tier_that_holds():
    assert choose([], "auto").startswith("bubblewrap+")
    assert choose(without_bubblewrap(), "auto").startswith("landlock+")


def test_a_named_tier_that_does_not_hold_is_refused_with_the_reason():
    reason = choose(without_bubblewrap(), "bubblewrap")
    assert reason.startswith("bubblewrap: ")
    assert "bwrap is not installed" in reason
    assert "sandbox.backend=unsafe-subprocess" in reason
    assert "\n" not in reason
