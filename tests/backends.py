"""Sandbox backends under test: what is missing is a skip on a laptop and a failure where required.

MAPPA_REQUIRE_BACKENDS names, with commas, those that have to be there, e.g. in CI.
"""

import os
from typing import NoReturn

import pytest

from mappa_core.adapters.sandboxes.choose import choose_sandbox
from mappa_core.config import Runtime
from mappa_core.domain.errors import SandboxUnavailable
from mappa_core.ports import Sandbox

EMBEDDED = ("bubblewrap", "landlock", "unsafe-subprocess")
DOCKER = pytest.param("docker", marks=pytest.mark.docker)


def absent(backend: str, reason: object) -> NoReturn:
    """Fail where `backend` is required, skip elsewhere."""
    if backend in os.environ.get("MAPPA_REQUIRE_BACKENDS", "").split(","):
        pytest.fail(f"{backend} is required here: {reason}")
    pytest.skip(str(reason))


async def open_backend(
    backend: str, concurrency: int, runtime: Runtime = "standard-library"
) -> Sandbox:
    """The sandbox `backend`, or no test."""
    try:
        return await choose_sandbox(backend, concurrency, runtime)
    except SandboxUnavailable as reason:
        absent(backend, reason)
