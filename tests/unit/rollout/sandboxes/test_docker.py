"""What a container is made with, and that its image has the versions of the lock; no engine."""

import asyncio
import dataclasses
import fcntl
import json
import resource
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from docker.errors import NotFound
from requests.exceptions import ConnectionError, ReadTimeout

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Artifact, Limits, ToolResult, ToolStatus
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.rollout.sandboxes.docker import DockerSandbox
from mappa_core.rollout.sandboxes.docker_container import Container, Engine, hardening
from tests.builders import make_tool_result

if TYPE_CHECKING:
    from docker.api.client import APIClient

ROOT = Path(__file__).parents[4]
MIB = 2**20
FORGED = json.dumps(
    dataclasses.asdict(
        dataclasses.replace(
            make_tool_result(), written=(Artifact(name="a", size_bytes=-1, sha256=""),)
        )
    )
)


def test_a_container_has_no_rights_and_bounds_on_everything() -> None:
    limits = Limits(memory_bytes=100 * MIB, workspace_bytes=8 * MIB, processes=5, inodes=10)
    made = hardening(limits, 12345)
    assert made["network_mode"] == "none"
    assert made["read_only"] is True
    assert made["cap_drop"] == ["ALL"]
    assert made["security_opt"] == ["no-new-privileges"]
    assert made["mem_limit"] == made["memswap_limit"] == (100 + 8 + 64) * MIB
    assert made["pids_limit"] == 13
    assert made["auto_remove"] is True
    assert "binds" not in made
    tmpfs = made["tmpfs"]
    assert isinstance(tmpfs, dict)
    assert set(tmpfs) == {"/tmp", "/mappa"}
    for options in tmpfs.values():
        assert {f"size={12 * MIB}", "nr_inodes=1034", "uid=12345", "mode=0700"} <= set(
            options.split(",")
        )


def test_the_image_has_the_versions_of_the_lock() -> None:
    locked = (ROOT / "requirements/cpu.lock").read_text().lower().splitlines()
    wanted = (ROOT / "infra/sandbox/requirements.txt").read_text().lower().splitlines()
    assert len(wanted) == 11
    assert set(wanted) <= set(locked)


@pytest.mark.parametrize(
    "environment",
    [
        {"DOCKER_HOST": "unix:///nowhere/docker.sock"},
        {"DOCKER_HOST": "tcp://host:no-port"},
        {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/nowhere"},
    ],
)
def test_without_an_engine_it_says_what_is_missing(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SandboxUnavailable, match=r"^docker: .*To mend it"):
        asyncio.run(choose_sandbox("docker", 1))


# --- an engine that goes away while a program runs


class Client:
    """An engine's client that says what it is told to, and cannot remove anything."""

    def __init__(self, says: Exception | None) -> None:
        self.says = says

    def wait(self, _name: str, timeout: int) -> object:
        assert timeout
        if self.says:
            raise self.says
        return {"StatusCode": 137}

    def containers(self, **_: object) -> object:
        raise ConnectionError("engine away")

    def remove_container(self, _name: str, *, force: bool) -> None:
        assert force
        raise ConnectionError("engine away")


class OneContainer(DockerSandbox):
    """It has one container, whose other end the test holds."""

    def __init__(self, says: Exception | None = None, grace_seconds: float = 30.0) -> None:
        super().__init__(1, grace_seconds=grace_seconds)
        ours, self.other_end = socket.socketpair()
        ours.setblocking(False)
        self._engine = Engine(
            client=cast("APIClient", Client(says)), threads=self._threads, image="",
            few_users=False, owner="test",
        )  # fmt: skip
        self.held = Container(id="1", engine=self._engine, connection=ours)

    async def _take(self, engine: Engine, limits: Limits) -> Container:
        assert engine is self._engine
        assert limits
        return self.held

    def after(self, answer: bytes | None) -> ToolResult:
        """A run whose container sends `answer` and ends; None for one that stays silent."""

        async def both() -> ToolResult:
            run = asyncio.create_task(self.run("print(1)", None, Limits(wall_seconds=0.1)))
            await asyncio.to_thread(self.other_end.recv, 2**20)
            if answer is not None:
                self.other_end.sendall(answer)
                self.other_end.close()
            return await run

        with self.other_end:
            return asyncio.run(both())


def message(text: str) -> bytes:
    data = len(text).to_bytes(8) + text.encode()
    return struct.pack(">BxxxL", 1, len(data)) + data


@pytest.mark.parametrize("says", [None, NotFound("removed already")])
def test_a_container_that_the_engine_saw_ending_was_taken_down_by_its_program(
    says: Exception | None,
) -> None:
    assert OneContainer(says).after(b"").status is ToolStatus.KILLED


@pytest.mark.parametrize(
    ("says", "answer"),
    [
        (ConnectionError("engine away"), b""),
        (ReadTimeout("it goes on"), b""),
        (None, None),
        (None, message("{}")),
        (None, message("[1]")),
        (None, message(FORGED)),
    ],
)
def test_what_the_engine_does_is_no_programs_fault(
    says: Exception | None, answer: bytes | None
) -> None:
    with pytest.raises(SandboxError, match=r"^(docker|the sandbox)[ :]"):
        OneContainer(says, grace_seconds=0.1 if answer is None else 30.0).after(answer)


def test_closing_without_an_engine_says_so(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(OneContainer().close())
    assert caplog.messages == ["docker: engine away; containers that still run end by themselves"]


def test_a_container_with_a_high_descriptor_waits() -> None:
    ours, theirs = socket.socketpair()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2048:
        pytest.skip("so many descriptors are not to be had")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, most))
    engine = OneContainer().held.engine
    with socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1500)) as high:
        waiting = Container(id="1", engine=engine, connection=high)
        assert waiting.is_waiting()
        theirs.close()
        assert not waiting.is_waiting()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    ours.close()
