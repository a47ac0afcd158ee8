"""What every sandbox keeps, asserted on each backend this machine has; see also the attacks."""

import asyncio
import hashlib
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mappa_core.core.errors import SandboxError
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from tests.backends import FUSION, run, tier

pytestmark = pytest.mark.anyio

MIB = 2**20


# --- results


async def test_a_program_that_ends_well(sandbox: Sandbox):
    result = await run(sandbox, "import sys; print('out'); print('err', file=sys.stderr)")
    assert (result.status, result.exit_code) == (ToolStatus.OK, 0)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert result.tier == sandbox.tier
    assert 0 < result.seconds < 10
    assert 0 < result.cpu_seconds < 10
    assert MIB < result.peak_memory_bytes < 512 * MIB


async def test_a_program_that_fails_leaves_its_traceback(sandbox: Sandbox):
    result = await run(sandbox, "x = 1\nraise ValueError('no such number')\n")
    assert (result.status, result.exit_code) == (ToolStatus.NONZERO, 1)
    assert result.stderr.endswith("ValueError: no such number\n")
    assert 'main.py", line 2' in result.stderr
    assert "sandboxes" not in result.stderr


async def test_the_exit_code_is_the_programs(sandbox: Sandbox):
    assert (await run(sandbox, "exit(7)")).exit_code == 7


async def test_a_signal_is_not_an_exit_code(sandbox: Sandbox):
    result = await run(sandbox, "import os; os.kill(os.getpid(), 11)")
    assert (result.status, result.exit_code) == (ToolStatus.KILLED, None)


async def test_wall_time_ends_a_program_that_ignores_signals(sandbox: Sandbox):
    code = (
        "import signal, time\n"
        "for n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
        "print('waiting', flush=True); time.sleep(60)"
    )
    result = await run(sandbox, code, wall_seconds=0.7)
    assert (result.status, result.exit_code) == (ToolStatus.TIMEOUT, None)
    assert result.stdout == "waiting\n"
    assert 0.7 <= result.seconds < 3


async def test_cpu_time_is_bounded_apart_from_wall_time(sandbox: Sandbox):
    result = await run(sandbox, "while True: pass", cpu_seconds=1, wall_seconds=30)
    assert result.status is ToolStatus.TIMEOUT
    assert result.cpu_seconds < 3


async def test_memory_is_bounded(sandbox: Sandbox):
    code = "x = []\nwhile True: x.append(bytearray(8 << 20))"
    result = await run(sandbox, code, memory_bytes=128 * MIB)
    assert result.status is ToolStatus.OUT_OF_MEMORY


async def test_memory_of_a_whole_tree_is_bounded(sandbox: Sandbox):
    code = (
        "import os, time\n"
        "for _ in range(6):\n"
        "    if not os.fork():\n"
        "        x = bytearray(60 << 20); time.sleep(20); os._exit(0)\n"
        "time.sleep(1)\n"
        "while True: os.wait()"
    )
    result = await run(sandbox, code, memory_bytes=200 * MIB, wall_seconds=8)
    assert result.status is ToolStatus.OUT_OF_MEMORY
    assert result.seconds < 5


async def test_long_output_keeps_both_ends(sandbox: Sandbox):
    code = "print('first'); print('x' * 5000); print('last')"
    result = await run(sandbox, code, output_bytes=1000)
    assert result.status is ToolStatus.OK
    assert result.stdout.startswith("first\nxxx")
    assert result.stdout.endswith("xxx\nlast\n")
    assert result.stdout_omitted_bytes == len("first\nlast\n") + 5001 - 1000
    assert f"[... {result.stdout_omitted_bytes} bytes omitted ...]" in result.stdout
    assert result.stderr_omitted_bytes == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_of_output_is_stopped(sandbox: Sandbox, stream: str):
    code = f"import sys\nwhile True: sys.{stream}.write('flood ' * 1000)"
    result = await run(sandbox, code, output_bytes=4096)
    assert result.status is ToolStatus.OUTPUT_LIMIT
    assert len(getattr(result, stream)) < 4096 + 100
    assert result.seconds < 5


async def test_any_bytes_survive(sandbox: Sandbox):
    code = "import sys; sys.stdout.buffer.write(b'a\\xff\\x00\\x1b[0m \\xc3\\xa9')"
    assert (await run(sandbox, code)).stdout == "a\\xff\x00\x1b[0m é"


READS_PAST_NUL = pytest.mark.skipif(
    sys.version_info < (3, 11, 4), reason="Python before 3.11.4 reads a line up to its NUL"
)


@pytest.mark.parametrize(
    "code",
    ["print(1)\nx = '\ud800'", pytest.param("print(1)\n\0print(2)", marks=READS_PAST_NUL)],
)
async def test_code_that_is_no_text_is_a_program_that_fails(sandbox: Sandbox, code: str):
    result = await run(sandbox, code)
    assert result.status is ToolStatus.NONZERO
    assert "SyntaxError" in result.stderr
    assert result.code == code


async def test_standard_input_is_empty(sandbox: Sandbox):
    assert (await run(sandbox, "import sys; print(repr(sys.stdin.read()))")).stdout == "''\n"


async def test_the_standard_library_is_there_and_nothing_else(sandbox: Sandbox):
    code = (
        "import decimal, fractions, itertools, json, math, random, sqlite3, statistics, sys\n"
        "import multiprocessing, asyncio, subprocess\n"
        "async def one(): return 1\n"
        "print(asyncio.run(one()), subprocess.run(['echo', 'two'], capture_output=True).stdout)\n"
        "print([p for p in sys.path if 'site-packages' in p])"
    )
    result = await run(sandbox, code)
    assert result.stderr == ""
    assert result.stdout == "1 b'two\\n'\n[]\n"


# --- files


async def test_a_workspace_persists_and_what_was_written_is_named(sandbox: Sandbox, tmp_path: Path):
    first = await sandbox.run(
        "import os; os.mkdir('d'); open('d/a.txt', 'w').write('one'); open('b', 'w')",
        tmp_path / "w",
        Limits(),
    )
    digest = hashlib.sha256(b"one").hexdigest()
    assert [(file.name, file.size_bytes) for file in first.written] == [("b", 0), ("d/a.txt", 3)]
    assert first.written[1].sha256 == digest
    second = await sandbox.run(
        "import os; print(open('d/a.txt').read()); os.remove('b'); open('c', 'w').write('2')",
        tmp_path / "w",
        Limits(),
    )
    assert second.stdout == "one\n"
    assert [file.name for file in second.written] == ["c"]
    files = [path for path in (tmp_path / "w").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path)) for path in files) == ["w/c", "w/d/a.txt"]


async def test_a_module_of_an_earlier_turn_can_be_imported(sandbox: Sandbox, tmp_path: Path):
    await sandbox.run("open('helper.py', 'w').write('answer = 42')", tmp_path, Limits())
    result = await sandbox.run("import helper; print(helper.answer)", tmp_path, Limits())
    assert (result.stdout, result.written) == ("42\n", ())


async def test_without_a_workspace_nothing_is_left(sandbox: Sandbox):
    await run(sandbox, "open('left', 'w').write('x')")
    assert (await run(sandbox, "import os; print(os.listdir())")).stdout == "['main.py']\n"


async def test_a_folder_may_become_a_file_and_the_program_a_folder(
    sandbox: Sandbox, tmp_path: Path
):
    turns = (
        "import os; os.mkdir('d'); open('d/x', 'w')",
        "import os, shutil; shutil.rmtree('d'); open('d', 'w').write('file')\n"
        "os.remove('main.py'); os.mkdir('main.py'); open('main.py/x', 'w')",
        "print(open('d').read())",
    )
    results = [await sandbox.run(code, tmp_path, Limits()) for code in turns]
    assert [result.status for result in results] == [ToolStatus.OK] * 3
    assert results[-1].stdout == "file\n"


async def test_only_plain_regular_files_are_taken(sandbox: Sandbox, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("hidden label")
    code = (
        "import os\n"
        f"os.symlink({str(secret)!r}, 'link'); os.symlink('/etc', 'folder'); os.mkfifo('pipe')\n"
        "open('kept', 'w').write('k'); os.link('kept', 'again'); open('ok', 'w').write('o')\n"
        "open('new\\nline', 'w'); open('right\\u202eleft', 'w'); open(b'\\xff', 'w')\n"
        "f = open('sparse', 'w'); f.truncate(40 << 20)\n"
        "os.mkdir('locked'); open('locked/in', 'w'); os.chmod('locked', 0)"
    )
    result = await sandbox.run(code, tmp_path / "w", Limits())
    assert result.stderr == ""
    assert [file.name for file in result.written] == ["ok", "locked/in"]
    reasons = {file.name: file.reason for file in result.rejected}
    assert reasons.keys() == {
        "link", "folder", "pipe", "kept", "again", "new\\nline", "right\\u202eleft", "\\xff",
        "sparse",
    }  # fmt: skip
    assert reasons["link"] == "a link, not a regular file"
    assert reasons["pipe"] == "a pipe, not a regular file"
    assert not any("hidden" in path.read_text() for path in (tmp_path / "w").glob("*[a-z]")
                   if path.is_file())  # fmt: skip


async def test_a_file_that_was_there_and_is_left_alone_stays_whatever_its_size(
    sandbox: Sandbox, tmp_path: Path
):
    (tmp_path / "train.csv").write_bytes(bytes(3 * MIB))
    for n in range(130):
        (tmp_path / f"{n:03}").touch()
    limits = Limits(workspace_bytes=8 * MIB, file_bytes=MIB)
    code = (
        "import os\nprint(len(open('train.csv', 'rb').read()))\n"
        "os.chmod('train.csv', 0o600); open('new', 'wb').write(bytes(2 << 20))"
    )
    result = await sandbox.run(code, tmp_path, limits)
    assert (result.stdout, result.removed) == (f"{3 * MIB}\n", ())
    assert [file.name for file in result.read or ()] == ["train.csv"]
    assert [(file.name, file.reason) for file in result.rejected] == [
        ("new", "more than 128 files")
    ]
    assert len(list(tmp_path.iterdir())) == 131


async def test_new_files_are_bounded_each_and_by_the_room_that_old_ones_leave(
    sandbox: Sandbox, tmp_path: Path
):
    (tmp_path / "old").write_bytes(bytes(3 * MIB))
    limits = Limits(workspace_bytes=5 * MIB, file_bytes=2 * MIB)
    code = (
        "import os\n"
        "for name, size in (('a', 1.5), ('b', 1), ('c', 0.5), ('d', 3)):\n"
        "    with open(name, 'w') as file: file.truncate(int(size * 2**20))"
    )
    result = await sandbox.run(code, tmp_path, limits)
    assert [file.name for file in result.written] == ["a", "c"]
    assert {file.name: file.reason for file in result.rejected} == {
        "b": "1.0 MiB, and there is room for 0.5 MiB",
        "d": "3.0 MiB, and one file may have 2.0 MiB",
    }
    assert (tmp_path / "old").stat().st_size == 3 * MIB


async def test_many_files_are_not_all_taken(sandbox: Sandbox, tmp_path: Path):
    code = "for n in range(200): open(f'{n:03}', 'w')"
    result = await sandbox.run(code, tmp_path, Limits())
    assert len(result.written) == 128
    assert result.rejected[0].name == "128"


async def test_what_a_program_read_is_seen_from_outside(sandbox: Sandbox, tmp_path: Path):
    names = ("read", "by_a_child", "mapped", "mapped_to_write", "renamed", "overwritten",
             "appended", "listed")  # fmt: skip
    for name in names:
        (tmp_path / name).write_text("old bytes")
    code = (
        "import mmap, os, subprocess\n"
        "open('read').read(1)\n"
        "subprocess.run(['cat', 'by_a_child'], stdout=subprocess.DEVNULL)\n"
        "fd = os.open('mapped', os.O_RDONLY); mmap.mmap(fd, 0, prot=mmap.PROT_READ)[0]\n"
        "fd = os.open('mapped_to_write', os.O_RDWR); mmap.mmap(fd, 0)[0]; os.close(fd)\n"
        "os.rename('renamed', 'other'); open('other').read()\n"
        "open('overwritten', 'w').write('new'); open('overwritten').read()\n"
        "open('appended', 'a').write('more')\n"
        "os.listdir(); os.stat('listed')\n"
        "open('own', 'w').write('x'); open('own').read()"
    )
    result = await sandbox.run(code, tmp_path, Limits())
    assert result.stderr == ""
    assert [file.name for file in result.read or ()] == [
        "by_a_child", "mapped", "mapped_to_write", "read", "renamed",
    ]  # fmt: skip
    digest = hashlib.sha256(b"old bytes").hexdigest()
    assert {(file.sha256, file.size_bytes) for file in result.read or ()} == {(digest, 9)}
    assert [file.name for file in result.written] == ["appended", "other", "overwritten", "own"]
    assert result.removed == ("renamed",)


async def test_a_file_written_anew_with_the_same_bytes_counts_as_written(
    sandbox: Sandbox, tmp_path: Path
):
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("same")
    code = (
        "import os, time; time.sleep(0.02)\n"
        "open('a', 'w').write('same')\n"
        "open('t', 'w').write('same'); os.replace('t', 'b')"
    )
    result = await sandbox.run(code, tmp_path, Limits())
    assert [file.name for file in result.written] == ["a", "b"]
    assert result.read == ()


async def test_attack_drown_the_file_trail(sandbox: Sandbox, tmp_path: Path):
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text("x")
    code = (
        "import os\n"
        "one, two = os.open('one', 0), os.open('two', 0)\n"
        "for _ in range(40_000): os.pread(one, 1, 0); os.pread(two, 1, 0)\n"
        "open('three').read()"
    )
    result = await sandbox.run(code, tmp_path, Limits())
    assert [file.name for file in result.read or ()] == ["one", "three", "two"]


# --- many runs, and their end


async def test_runs_are_bounded_and_independent(sandbox: Sandbox):
    code = "import time; print(time.time()); time.sleep(0.2); print(time.time())"
    results = await asyncio.gather(*(run(sandbox, code) for _ in range(12)))
    spans = [tuple(map(float, result.stdout.split())) for result in results]
    most = max(sum(a <= start < b for a, b in spans) for start, _ in spans)
    assert 2 <= most <= 4


async def test_cancelling_ends_the_program(sandbox: Sandbox):
    if tier(sandbox) == FUSION:
        pytest.skip("over HTTP a program that nobody waits for goes on to its time limit")
    mark = f"77.{time.time_ns()}"
    task = asyncio.create_task(run(sandbox, f"import os; os.execvp('sleep', ['sleep', '{mark}'])"))
    await until(lambda: running(mark))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not running(mark))
    assert (await run(sandbox, "print('still here')")).stdout == "still here\n"


async def test_a_closed_sandbox_says_so():
    sandbox = await choose_sandbox("unsafe-subprocess", concurrency=1)
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        await run(sandbox, "print(1)")


def running(mark: str) -> bool:
    """Whether a program of that name sleeps anywhere on this machine, containers included."""
    listing = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True)
    return f"sleep {mark}" in listing.stdout


async def until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in 10 s"
        await asyncio.sleep(0.02)
