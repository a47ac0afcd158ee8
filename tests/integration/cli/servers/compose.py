"""docker-compose on the project's file, with nothing of the caller's environment."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

LOGINS = ("POSTGRES", "OWNER", "SERVICES", "WORKER")
ROOT = Path(__file__).parents[4]


def compose(
    *arguments: str,
    password: str | None,
    files: tuple[str, ...] = (),
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `docker-compose ARGUMENTS`; `files` come on top of the project's, relative to it."""
    command = shutil.which("docker-compose")
    if command is None:
        if os.environ.get("CI"):
            pytest.fail("docker-compose is missing: apt-get install docker-compose")
        pytest.skip("docker-compose is not installed")
    kept = {name: os.environ[name] for name in ("PATH", "DOCKER_HOST") if name in os.environ}
    environment = {**kept, "HOME": "/nonexistent"}
    if password is not None:
        environment |= {f"{whose}_PASSWORD": password for whose in LOGINS}
    environment |= variables or {}
    named = [part for file in ("docker-compose.yml", *files) for part in ("--file", file)]
    return subprocess.run(
        [command, *named, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
