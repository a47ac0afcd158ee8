"""Sandbox backends under test: what is missing is a skip on a laptop and a failure where required.

MAPPA_REQUIRE_BACKENDS names, with commas, those that have to be there, e.g. in CI.
"""

import os
from typing import NoReturn

import pytest

from mappa_core.core.errors import SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolResult
from mappa_core.rollout.config import Runtime
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes.choose import choose_sandbox

FUSION, REAL_FUSION = "sandbox-fusion", "sandbox-fusion-real"
"""A local server that speaks the documented API, and the one of MAPPA_SANDBOXFUSION_URL."""
UNSAFE = "unsafe-subprocess"
DOCKER = pytest.param("docker", marks=pytest.mark.docker)
WALLED = ["bubblewrap", "landlock", DOCKER, FUSION]
if "MAPPA_SANDBOXFUSION_URL" in os.environ:
    WALLED.append(REAL_FUSION)
BACKENDS = [*WALLED, UNSAFE]
EMBEDDED = ["bubblewrap", "landlock", UNSAFE]


def absent(backend: str, reason: object) -> NoReturn:
    """Fail where `backend` is required, skip elsewhere."""
    if backend in os.environ.get("MAPPA_REQUIRE_BACKENDS", "").split(","):
        pytest.fail(f"{backend} is required here: {reason}")
    pytest.skip(str(reason))


async def open_backend(
    backend: str,
    concurrency: int,
    runtime: Runtime = "standard-library",
    fusion_url: str | None = None,
) -> Sandbox:
    """The sandbox `backend`, or no test."""
    if backend == REAL_FUSION:
        backend, fusion_url = FUSION, os.environ["MAPPA_SANDBOXFUSION_URL"]
    try:
        return await choose_sandbox(backend, concurrency, runtime, fusion_url=fusion_url)
    except SandboxUnavailable as reason:
        absent(backend, reason)


async def run(sandbox: Sandbox, code: str, **limits: float) -> ToolResult:
    """One run without a workspace."""
    return await sandbox.run(code, None, Limits(**limits))


def tier(sandbox: Sandbox) -> str:
    """The first word of what holds."""
    return sandbox.tier.split("+")[0]
