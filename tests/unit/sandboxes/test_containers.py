"""What a container is made with, and that its image has the versions of the lock; no engine."""

from pathlib import Path

import pytest

from mappa_core.adapters.sandboxes import containers
from mappa_core.adapters.sandboxes.choose import choose_sandbox
from mappa_core.domain.errors import SandboxUnavailable
from mappa_core.domain.records import Limits

ROOT = Path(__file__).parents[3]
MIB = 2**20


def test_a_container_has_no_rights_and_bounds_on_everything() -> None:
    limits = Limits(memory_bytes=100 * MIB, workspace_bytes=8 * MIB, processes=5, inodes=10)
    made = containers.hardening(limits, 12345)
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


def test_without_an_engine_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(SandboxUnavailable, match=r"^docker: .*To mend it"):
        asyncio.run(choose_sandbox("docker", 1))
