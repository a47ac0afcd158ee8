"""The sandboxes that the contract and the attacks are run on, one after the other."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mappa_core.rollout.protocols import Sandbox
from tests.backends import BACKENDS, FUSION, open_backend

SERVER = Path(__file__).parents[1] / "fakes" / "fusion_server.py"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def local_server() -> Iterator[str]:
    """The address of a server that speaks SandboxFusion's documented API."""
    command = [sys.executable, str(SERVER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


@pytest.fixture(scope="module", params=BACKENDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    url = request.getfixturevalue("local_server") if request.param == FUSION else None
    chosen = await open_backend(request.param, 4, fusion_url=url)
    yield chosen
    await chosen.close()
