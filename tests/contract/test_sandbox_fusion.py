"""What is particular to the SandboxFusion client; contract and attacks are run on it as on all.

Against a local server that speaks the documented API, a real one where MAPPA_SANDBOXFUSION_URL
names it, and answers that no server should give.
"""

import asyncio
import base64
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.rollout.sandboxes.sandbox_fusion import FusionSandbox
from tests.backends import FUSION, REAL_FUSION, UNSAFE, WALLED, absent, open_backend, run, tier

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[name for name in (FUSION, REAL_FUSION) if name in WALLED])
async def fusion(request: pytest.FixtureRequest, local_server: str) -> AsyncIterator[Sandbox]:
    chosen = await open_backend(request.param, 4, fusion_url=local_server)
    yield chosen
    await chosen.close()


async def test_the_tier_says_where_it_ran(fusion: Sandbox):
    assert fusion.tier.split("+")[0] == "sandbox-fusion"
    assert (await run(fusion, "print(1)")).tier == fusion.tier


async def test_a_program_that_kills_its_supervisor_is_a_killed_program(fusion: Sandbox):
    result = await run(fusion, "import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    # As root the program is another user and may not; elsewhere it took the reply down with it.
    assert result.status in (ToolStatus.KILLED, ToolStatus.NONZERO)
    assert (await run(fusion, "print('next')")).stdout == "next\n"


async def test_more_output_than_the_service_can_carry_arrives(fusion: Sandbox):
    result = await run(fusion, "print('x' * 1_000_000)", output_bytes=2**20)
    assert result.status is ToolStatus.OK
    assert len(result.stdout) == 1_000_001


async def test_auto_takes_a_named_server_that_holds(local_server: str):
    chosen = await choose_sandbox("auto", 1, fusion_url=local_server)
    await chosen.close()
    assert tier(chosen) == FUSION


async def test_auto_says_so_where_the_named_server_is_away(caplog: pytest.LogCaptureFixture):
    try:
        chosen = await choose_sandbox("auto", 1, fusion_url="http://127.0.0.1:9")
    except SandboxUnavailable as reason:
        absent("bubblewrap", reason)
    await chosen.close()
    assert tier(chosen) not in (FUSION, UNSAFE)
    (warning,) = caplog.messages
    assert "127.0.0.1:9 cannot be reached" in warning
    assert warning.endswith(f"using {chosen.tier} instead")


# --- the client, against answers that a server should not give


Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer) -> FusionSandbox:
    return FusionSandbox("http://service", 2, transport=httpx.MockTransport(answer))


def service(**changes: object) -> httpx.Response:
    ran = {"status": "Finished", "return_code": 0, "stdout": "", "stderr": ""}
    body = {"status": "Success", "message": "", "run_result": ran, "files": {}} | changes
    return httpx.Response(200, json=body)


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (
            httpx.Response(422, json={"detail": "no such language"}),
            "answered 422",
        ),
        (httpx.Response(500, text="trace\nback"), "answered 500: trace back"),
        (httpx.Response(200, text="<html>"), "does not speak SandboxFusion's protocol"),
        (service(status="SandboxError", message="no space"), "SandboxFusion failed: no space"),
        (service(files={".mappa/reply.json": "%%%"}), "in no base64"),
    ],
)
async def test_a_failing_service_is_asked_once(response: httpx.Response, complaint: str):
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return response

    with pytest.raises(SandboxError, match=complaint):
        await client(answer).run("print(1)", None, Limits())
    assert len(asked) == 1


@pytest.mark.parametrize("code", [-9, 137, None])
async def test_a_supervisor_that_was_killed_was_so_by_its_program(code: int | None):
    ran = {"status": "Finished", "return_code": code, "stdout": "", "stderr": "Killed"}
    killed = client(lambda _: service(status="Failed", run_result=ran))
    result = await killed.run("print(1)", None, Limits())
    assert result.status is ToolStatus.KILLED
    assert "no sealed reply Killed" in result.stderr


def sealed(reply: bytes) -> dict[str, object]:
    seal = f"mappa reply {hashlib.sha256(reply).hexdigest()}\n"
    return {
        "run_result": {"status": "Finished", "return_code": 0, "stdout": seal, "stderr": ""},
        "files": {".mappa/reply.json": base64.b64encode(reply).decode()},
    }


FULL = {"status": "Finished", "return_code": 1, "stdout": "", "stderr": "No space left on device"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"files": {".mappa/reply.json": "e30="}}, "no sealed reply"),  # cut off
        ({"status": "Failed", "run_result": FULL}, "no sealed reply No space left on device"),
        ({"files": {".mappa/reply.json": "\u00e9"}}, "in no base64"),
        (sealed(b""), "no reply of ours"),
        (sealed(b"[1]"), "no reply of ours"),
        (sealed(b'{"status": "weird"}'), "no reply of ours"),
    ],
)
async def test_a_failing_server_is_no_programs_fault(changes: dict[str, object], complaint: str):
    with pytest.raises(SandboxError, match=complaint):
        await client(lambda _: service(**changes)).run("print(1)", None, Limits())


def test_an_address_that_is_none_is_refused():
    with pytest.raises(SandboxUnavailable, match="MAPPA_SANDBOXFUSION_URL=http://host:no-port: "):
        FusionSandbox("http://host:no-port", 1)


async def test_a_time_limit_of_the_service_is_a_timeout():
    over = {"status": "TimeLimitExceeded", "return_code": None, "stdout": "", "stderr": ""}
    slow = client(lambda _: service(status="Failed", run_result=over))
    assert (await slow.run("print(1)", None, Limits())).status is ToolStatus.TIMEOUT


async def test_a_frozen_service_is_left_after_a_while_and_not_asked_again():
    asked = 0

    async def answer(_: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        await asyncio.sleep(30)
        return service()

    transport = httpx.MockTransport(answer)
    frozen = FusionSandbox("http://service", 1, grace_seconds=0.1, transport=transport)
    with pytest.raises(SandboxError, match=r"did not answer in 0 s.*not sent again"):
        await frozen.run("print(1)", None, Limits(wall_seconds=0.1))
    assert asked == 1


async def test_a_refused_connection_is_tried_again_because_nothing_ran():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    sandbox = FusionSandbox(f"http://127.0.0.1:{port}", 1)
    waiting = asyncio.create_task(sandbox.run("print(1)", None, Limits()))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    async with await asyncio.start_server(answer, "127.0.0.1", port):
        with pytest.raises(SandboxError, match="answered 503"):
            await waiting
    await sandbox.close()


async def test_a_server_that_is_away_is_named_with_its_variable():
    away = FusionSandbox("http://127.0.0.1:9", 1)
    with pytest.raises(SandboxUnavailable, match=r"cannot be reached.*MAPPA_SANDBOXFUSION_URL"):
        await away.start()
    await away.close()


@pytest.mark.parametrize("name", ["../outside", "/etc/x", "a/../../b", "new\nline"])
async def test_a_forged_file_name_cannot_leave_the_workspace(name: str, tmp_path: Path):
    reply = {
        "code": "", "status": "ok", "exit_code": 0, "stdout": "", "stderr": "",
        "stdout_omitted_bytes": 0, "stderr_omitted_bytes": 0, "seconds": 1.0, "cpu_seconds": None,
        "peak_memory_bytes": None, "tier": "unsafe-subprocess", "read": [], "removed": [],
        "written": [{"name": name, "size_bytes": 1, "sha256": hashlib.sha256(b"x").hexdigest()}],
        "rejected": [],
    }  # fmt: skip
    data = json.dumps(reply).encode()
    seal = f"mappa reply {hashlib.sha256(data).hexdigest()}\n"
    ran = {"status": "Finished", "return_code": 0, "stdout": seal, "stderr": ""}
    files = {
        ".mappa/reply.json": base64.b64encode(data).decode(),
        ".mappa/contents": base64.b64encode(b"x").decode(),
    }
    forged = client(lambda _: service(run_result=ran, files=files))
    with pytest.raises(SandboxError, match="no plain name"):
        await forged.run("print(1)", tmp_path / "w", Limits())
    assert not (tmp_path / "outside").exists()
