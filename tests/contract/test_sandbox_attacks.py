"""The abuse suite, on each backend this machine has.

Each attack prints what it got; being refused is what it should get. A tier that does not contain
one is asserted not to, so that docs/security.md stays true in both directions.
"""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.supervisor import seccomp
from tests.backends import UNSAFE, WALLED, run, tier

pytestmark = pytest.mark.anyio

MIB = 2**20
walled_only = pytest.mark.parametrize("sandbox", WALLED, indirect=True)
"""For what the unsafe tier leaves to the user it runs as."""

ATTEMPT = """
import ctypes, errno, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
try:
    {attack}
except (OSError, SystemError) as error:
    print("refused", type(error).__name__)
else:
    print("done")
"""


async def attack(sandbox: Sandbox, *lines: str, **limits: float) -> str:
    code = ATTEMPT.format(attack="\n    ".join(lines))
    result = await run(sandbox, code, **limits)
    return (result.stdout or f"{result.status} {result.stderr}").strip().splitlines()[-1].split()[0]


def expected(sandbox: Sandbox) -> str:
    return "done" if tier(sandbox) == UNSAFE else "refused"


def expected_in_tmp(sandbox: Sandbox) -> str:
    # A private room covers /tmp even where nothing else protects it.
    return "refused" if "tmpfs" in sandbox.tier else expected(sandbox)


def numbered(numbers: tuple[int, int | None]) -> int:
    number = numbers[0 if os.uname().machine == "x86_64" else 1]
    return pytest.skip("no such call here") if number is None else number


def has_quota(sandbox: Sandbox) -> bool:
    return tier(sandbox) == "bubblewrap" or "tmpfs" in sandbox.tier


async def test_attack_local_network(sandbox: Sandbox):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        outcome = await attack(sandbox, f"socket.create_connection(('127.0.0.1', {port}), 2)")
    assert outcome == expected(sandbox)


@walled_only
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
async def test_attack_the_internet(sandbox: Sandbox, kind: str):
    lines = (
        f"s = socket.socket(socket.AF_INET, socket.{kind})",
        "s.settimeout(2); s.connect(('192.0.2.1', 53)); s.send(b'x')",
    )
    assert await attack(sandbox, *lines) == "refused"


async def test_attack_abstract_socket(sandbox: Sandbox):
    name = f"\0mappa-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        lines = (f"s = socket.socket(socket.AF_UNIX); s.connect({name!r})",)
        assert await attack(sandbox, *lines) == expected(sandbox)


async def test_attack_unix_socket_of_a_service(sandbox: Sandbox, open_place: Path):
    path = str(open_place / "service")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        Path(path).chmod(0o777)
        listener.listen()
        lines = (f"s = socket.socket(socket.AF_UNIX); s.connect({path!r})",)
        assert await attack(sandbox, *lines) == expected_in_tmp(sandbox)


async def test_attack_unix_datagram_pair(sandbox: Sandbox, open_place: Path):
    path = str(open_place / "datagrams")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        Path(path).chmod(0o777)
        lines = (
            "s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)",
            f"s.sendto(b'x', {path!r})",
        )
        assert await attack(sandbox, *lines) == expected_in_tmp(sandbox)


@walled_only
@pytest.mark.parametrize("family", ["AF_NETLINK", "AF_VSOCK", "AF_PACKET"])
async def test_attack_odd_address_families(sandbox: Sandbox, family: str):
    assert await attack(sandbox, f"socket.socket(socket.{family}, socket.SOCK_RAW)") == "refused"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that every user can reach, so that it is the sandbox that refuses."""
    with tempfile.TemporaryDirectory(prefix="mappa-test-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


async def test_attack_read_a_secret_file(sandbox: Sandbox, open_place: Path):
    (open_place / "label").write_text("42")
    lines = (f"print(open({str(open_place / 'label')!r}).read())",)
    assert await attack(sandbox, *lines) == expected_in_tmp(sandbox)


@walled_only
@pytest.mark.parametrize("path", ["/etc/shadow", "/root", "/home", "/var/lib", "/etc/hostname"])
async def test_attack_read_the_system(sandbox: Sandbox, path: str):
    lines = (f"os.listdir({path!r}) if os.path.isdir({path!r}) else open({path!r}).read()",)
    assert await attack(sandbox, *lines) == "refused"


@walled_only
async def test_attack_write_outside(sandbox: Sandbox):
    targets = ("/usr/x", "/etc/x", "/opt/environment/x", "/opt/python/x", "/x", "/dev/x")
    for target in targets:
        assert await attack(sandbox, f"open({target!r}, 'w')") == "refused", target


@walled_only
async def test_attack_poison_the_interpreter(sandbox: Sandbox):
    assert await attack(sandbox, "open(os.path.dirname(os.__file__) + '/x.py', 'w')") == "refused"
    assert await attack(sandbox, "open(sys.prefix + '/x.py', 'w')") == "refused"


async def test_attack_the_environment(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GOOGLE_API_KEY", "secret-key")
    result = await run(sandbox, "import os; print(sorted(os.environ))")
    allowed = {"HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "PWD", "TMPDIR"}
    assert set(eval(result.stdout)) <= allowed


async def test_attack_proc_of_others(sandbox: Sandbox):
    code = (
        "import glob\n"
        "for path in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/cmdline'):\n"
        "    try: print(open(path).read())\n"
        "    except OSError: pass\n"
        "print('end')"
    )
    secret = f"mappa-secret-{time.time_ns()}"
    with subprocess.Popen(
        [sys.executable, "-c", "input()", secret], stdin=subprocess.PIPE, env={"KEY": secret}
    ) as neighbour:
        result = await run(sandbox, code)
        neighbour.kill()
    assert result.stdout.endswith("end\n")
    assert (secret in result.stdout) is (tier(sandbox) == UNSAFE)


async def test_attack_signal_a_process_outside(sandbox: Sandbox):
    # As root a program is another user than we are, whatever the tier.
    contained = tier(sandbox) != UNSAFE or os.geteuid() == 0
    with subprocess.Popen(["sleep", "30"]) as victim:
        outcome = await attack(sandbox, f"os.kill({victim.pid}, 9)")
        assert outcome == ("refused" if contained else "done")
        assert (victim.poll() is None) is contained
        victim.kill()


async def test_attack_mode_owner_times_and_attributes_of_a_file_outside(sandbox: Sandbox):
    # As root a program is another user than we are; test_machines.py has what is its own user's.
    contained = tier(sandbox) != UNSAFE or os.geteuid() == 0
    # Not in /tmp, which a private room covers where nothing else protects a file.
    with tempfile.TemporaryDirectory(prefix="mappa-test-", dir="/var/tmp") as folder:
        file = Path(folder, "file")
        file.touch()
        for path, mode in ((Path(folder), 0o755), (file, 0o644)):
            path.chmod(mode)

        def state() -> tuple[object, ...]:
            found = file.stat()
            return found.st_mode, found.st_uid, found.st_mtime, os.listxattr(file)

        before = state()
        for change in (
            f"os.chmod({str(file)!r}, 0o600)",
            f"os.chown({str(file)!r}, os.getuid(), os.getgid())",
            f"os.utime({str(file)!r}, (1, 1))",
            f"os.setxattr({str(file)!r}, 'user.note', b'for the next run')",
        ):
            await attack(sandbox, change)
        assert (state() == before) is contained


async def test_attack_limits_and_priority_of_a_process_outside(sandbox: Sandbox):
    contained = tier(sandbox) != UNSAFE or os.geteuid() == 0
    with subprocess.Popen(["sleep", "30"]) as victim:

        def state() -> tuple[object, ...]:
            limits = Path(f"/proc/{victim.pid}/limits").read_text()
            return limits, os.getpriority(os.PRIO_PROCESS, victim.pid)

        before = state()
        await attack(
            sandbox, f"import resource; resource.prlimit({victim.pid}, resource.RLIMIT_CPU, (9, 9))"
        )
        await attack(sandbox, f"os.setpriority(os.PRIO_PROCESS, {victim.pid}, 19)")
        assert (state() == before) is contained
        victim.kill()


@walled_only
async def test_attack_signal_the_supervisor_and_everybody(sandbox: Sandbox):
    with subprocess.Popen(["sleep", "30"]) as victim:
        await attack(sandbox, "os.kill(os.getppid(), 9)")
        await attack(sandbox, "os.kill(-1, 9)", wall_seconds=3)
        assert victim.poll() is None
        victim.kill()
    assert (await run(sandbox, "print('alive')")).stdout == "alive\n"


async def test_attack_forged_failure_of_the_sandbox(sandbox: Sandbox):
    code = (
        "import os, sys\n"
        "for pid in (1, 2, os.getppid()):\n"
        "    for fd in range(3, 20):\n"
        "        try: open(f'/proc/{pid}/fd/{fd}', 'w').write('!!!!')\n"
        "        except OSError: pass\n"
        "sys.stderr.write('bwrap: could not start\\n'); sys.exit(1)"
    )
    assert (await run(sandbox, code)).status is ToolStatus.NONZERO


async def test_attack_fork_bomb(sandbox: Sandbox):
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    started = time.monotonic()
    result = await run(sandbox, code, wall_seconds=1.0, processes=16)
    # Which limit it meets first depends on how fast the machine forks.
    assert result.status in (ToolStatus.TIMEOUT, ToolStatus.OUT_OF_MEMORY)
    assert time.monotonic() - started < 6
    assert (await run(sandbox, "print('alive')")).stdout == "alive\n"


async def test_attack_many_processes(sandbox: Sandbox):
    code = (
        "import os, time\nn = 0\n"
        "try:\n"
        "    while True:\n"
        "        if not os.fork(): time.sleep(5); os._exit(0)\n"
        "        n += 1\n"
        "except OSError: print(n)"
    )
    result = await run(sandbox, code, processes=16)
    assert 8 <= int(result.stdout) <= 19
    assert result.seconds < 5


async def test_attack_daemon_left_behind(sandbox: Sandbox):
    mark = "12.3456789"
    code = (
        "import os\n"
        "if not os.fork():\n"
        "    os.setsid()\n"
        f"    if not os.fork(): os.execvp('sleep', ['sleep', '{mark}'])\n"
        "    os._exit(0)\n"
        "os.wait(); print('gone')"
    )
    result = await run(sandbox, code)
    assert result.stdout == "gone\n"
    assert result.seconds < 5
    listing = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True)
    assert f"sleep {mark}" not in listing.stdout


async def test_attack_fill_the_disk(sandbox: Sandbox):
    lines = (
        "for n in range(40):",
        "    with open(f'f{n}', 'wb') as f: f.write(bytes(1 << 20))",
    )
    outcome = await attack(sandbox, *lines, workspace_bytes=8 * MIB)
    assert outcome == ("refused" if has_quota(sandbox) else "done")


async def test_attack_one_enormous_file(sandbox: Sandbox):
    lines = ("f = open('f', 'wb'); f.truncate(1 << 40)",)
    assert await attack(sandbox, *lines) == "refused"


async def test_attack_inodes(sandbox: Sandbox):
    lines = ("for n in range(6000): os.close(os.open(f'f{n}', os.O_CREAT))",)
    outcome = await attack(sandbox, *lines, inodes=512)
    assert outcome == ("refused" if has_quota(sandbox) else "done")


async def test_attack_descriptors(sandbox: Sandbox):
    lines = ("keep = [os.open('/dev/null', 0) for _ in range(1000)]",)
    assert await attack(sandbox, *lines, open_files=64) == "refused"


@walled_only
@pytest.mark.parametrize(
    "name",
    ["ptrace", "unshare", "mount", "keyctl", "bpf", "io_uring_setup", "userfaultfd", "chroot"],
)
async def test_attack_system_calls(sandbox: Sandbox, name: str):
    number = numbered(seccomp.DENIED[name])
    lines = (f"call({number}, 0, 0, 0, 0, 0)",)
    assert await attack(sandbox, *lines) == "refused"


@walled_only
async def test_attack_user_namespace_by_clone(sandbox: Sandbox):
    number = 56 if os.uname().machine == "x86_64" else 220
    lines = (f"call({number}, 0x10000000 | 17, 0, 0, 0, 0)",)
    assert await attack(sandbox, *lines) == "refused"


async def test_attack_become_root(sandbox: Sandbox):
    assert await attack(sandbox, "os.setuid(0)") == "refused"
    code = "print(open('/proc/self/status').read())"
    if tier(sandbox) == "bubblewrap":
        status = (await run(sandbox, code)).stdout
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status


# --- what is handed on: bombs stay bytes, and nobody here opens them


async def test_attack_zip_bomb_is_bytes(sandbox: Sandbox, tmp_path: Path):
    code = (
        "import zipfile\n"
        "with zipfile.ZipFile('model.pkl', 'w', zipfile.ZIP_DEFLATED) as z:\n"
        "    for n in range(4):\n"
        "        with z.open(str(n), 'w') as f:\n"
        "            for _ in range(32): f.write(bytes(1 << 20))"
    )
    result = await sandbox.run(code, tmp_path, Limits())
    assert [file.name for file in result.written] == ["model.pkl"]
    assert result.written[0].size_bytes < MIB
    with zipfile.ZipFile(tmp_path / "model.pkl") as bomb:
        assert sum(entry.file_size for entry in bomb.infolist()) == 128 * MIB
    assert [path.name for path in tmp_path.iterdir()] == ["model.pkl"]
    # A later turn that opens it is held to its own limits.
    opens = "import zipfile; zipfile.ZipFile('model.pkl').extractall('out')"
    later = await sandbox.run(opens, tmp_path, Limits(workspace_bytes=8 * MIB))
    assert later.status is (ToolStatus.NONZERO if has_quota(sandbox) else ToolStatus.OK)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*")) < 10 * MIB


async def test_attack_pickle_bomb_never_goes_off_here(
    sandbox: Sandbox, tmp_path: Path, open_place: Path
):
    mark = open_place / "exploded"
    code = (
        "import os, pickle\n"
        "class Bomb:\n"
        f"    def __reduce__(self): return (os.system, ('echo > {mark}; touch mark',))\n"
        "pickle.dump(Bomb(), open('X_train.pkl', 'wb'))"
    )
    result = await sandbox.run(code, tmp_path, Limits())
    assert [file.name for file in result.written] == ["X_train.pkl"]
    assert b"echo" in (tmp_path / "X_train.pkl").read_bytes()
    assert not mark.exists()
    # Whoever loads it in a later turn does so in the sandbox.
    loads = "import os, pickle; pickle.load(open('X_train.pkl', 'rb')); print(os.listdir())"
    later = await sandbox.run(loads, tmp_path, Limits())
    assert "X_train.pkl" in later.stdout
    assert mark.exists() is (tier(sandbox) == UNSAFE and "tmpfs" not in sandbox.tier)


async def test_attack_recursive_pickle_in_memory(sandbox: Sandbox):
    bomb = pickle.dumps([b"x" * 2**20] * 2)
    code = (
        f"import pickle\nx = []\nwhile True: x.append((pickle.loads({bomb!r}), bytearray(8 << 20)))"
    )
    result = await run(sandbox, code, memory_bytes=128 * MIB, wall_seconds=20)
    assert result.status is ToolStatus.OUT_OF_MEMORY


async def test_attack_deep_folders(sandbox: Sandbox, tmp_path: Path):
    code = "import os\nfor n in range(1200): os.mkdir('d'); os.chdir('d')\nopen('f', 'w')"
    result = await sandbox.run(code, tmp_path, Limits())
    assert result.written == ()
    assert [file.reason for file in result.rejected] == ["over 8 folders deep"]
    assert not list(tmp_path.rglob("f"))


async def test_attack_files_over_the_size_that_is_taken(sandbox: Sandbox, tmp_path: Path):
    code = "open('large', 'wb').write(bytes(20 << 20)); open('small', 'w').write('x')"
    result = await sandbox.run(code, tmp_path, Limits())
    assert [file.name for file in result.written] == ["small"]
    assert [file.name for file in result.rejected] == ["large"]


async def test_attack_socket_as_an_artifact(sandbox: Sandbox, tmp_path: Path):
    code = (
        "import socket\n"
        "try: s = socket.socket(socket.AF_UNIX); s.bind('door')\n"
        "except OSError: pass\n"
        "open('ok', 'w').write('x')"
    )
    result = await sandbox.run(code, tmp_path, Limits())
    assert [file.name for file in result.written] == ["ok"]
    assert not (tmp_path / "door").exists()


@walled_only
async def test_attack_program_from_memory_runs_and_stays_inside(sandbox: Sandbox, open_place: Path):
    (open_place / "label").write_text("42")
    code = (
        "import os, shutil\n"
        "fd = os.memfd_create('tool')\n"
        "os.write(fd, open(shutil.which('cat'), 'rb').read())\n"
        "os.execv(f'/proc/self/fd/{{fd}}', ['cat', {file!r}])"
    )
    own, label = "main.py", str(open_place / "label")
    inside, outside = [await run(sandbox, code.format(file=file)) for file in (own, label)]
    assert "memfd_create" in inside.stdout
    assert (outside.status, outside.stdout) == (ToolStatus.NONZERO, "")


@walled_only
async def test_attack_terminal_of_the_supervisor(sandbox: Sandbox):
    lines = ("import fcntl, termios", "fcntl.ioctl(0, termios.TIOCSTI, b'x')")
    assert await attack(sandbox, *lines) == "refused"
    assert await attack(sandbox, "open('/dev/tty', 'w').write('x')") == "refused"


@walled_only
async def test_attack_kernel_settings(sandbox: Sandbox):
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
    ):
        assert await attack(sandbox, f"open({path!r}, 'w').write('x')") == "refused", path
    assert await attack(sandbox, "time.clock_settime(time.CLOCK_REALTIME, 0)") == "refused"


async def test_attack_set_user_id_program(sandbox: Sandbox):
    lines = (
        "import subprocess",
        "who = subprocess.run(['su', '-c', 'id'], capture_output=True, stdin=subprocess.DEVNULL)",
        "assert b'uid=0' not in who.stdout",
        "os.chmod('main.py', 0o4755); os.seteuid(0)",
    )
    assert await attack(sandbox, *lines) == "refused"


async def test_attack_the_next_run(sandbox: Sandbox):
    code = (
        "import os\n"
        "for folder in ('/tmp', os.environ['TMPDIR'], '/dev/shm', '/var/tmp', '/mappa'):\n"
        "    try: open(folder + '/left-MARK', 'w').write('x')\n"
        "    except OSError: pass"
    ).replace("MARK", str(time.time_ns()))
    await run(sandbox, code)
    looks = (
        "import os\n"
        "found = []\n"
        "for folder in ('/tmp', os.environ['TMPDIR'], '/dev/shm', '/var/tmp', '/mappa'):\n"
        "    try: found += [n for n in os.listdir(folder) if n.startswith('left-')]\n"
        "    except OSError: pass\n"
        "print(found)"
    )
    left = (await run(sandbox, looks)).stdout
    if tier(sandbox) == UNSAFE:  # it may write wherever its user may
        for folder in ("/tmp", "/dev/shm", "/var/tmp"):
            for path in Path(folder).glob("left-*"):
                path.unlink()
        assert left != "[]\n"
    else:
        assert left == "[]\n"


@walled_only
@pytest.mark.parametrize("kind", ["shmget", "semget", "msgget"])
async def test_attack_an_object_for_the_next_run(sandbox: Sandbox, kind: str):
    number, key = numbered(seccomp.SHARED[kind]), os.getpid()
    size = "" if kind == "msgget" else "1, "
    await attack(sandbox, f"call({number}, {key}, {size}0o1666)")
    assert await attack(sandbox, f"call({number}, {key}, {size}0o666)") == "refused"


async def test_attack_many_runs_at_once_are_all_contained(sandbox: Sandbox):
    bombs = [
        run(sandbox, "while True: pass", wall_seconds=1.0),
        run(sandbox, "x = bytearray(1 << 30)", memory_bytes=64 * MIB),
        run(sandbox, "import os\nwhile True: os.write(1, b'x' * 65536)", output_bytes=1024),
        run(sandbox, "import os, time\nif os.fork(): time.sleep(9)\nos.setsid(); time.sleep(9)",
            wall_seconds=1.0),
    ]  # fmt: skip
    statuses = [result.status for result in await asyncio.gather(*bombs)]
    expected = ["timeout", "out_of_memory", "output_limit", "timeout"]
    assert [status.value for status in statuses] == expected
    assert (await run(sandbox, "print('alive')")).stdout == "alive\n"
