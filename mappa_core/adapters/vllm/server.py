"""One vLLM server process: start it, wait until it answers, know when it has died, stop it.

It listens on a Unix socket in a directory of this user alone: no port to collide on, and vLLM's
development endpoints, which change weights, are out of everybody else's reach.
"""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from mappa_core.domain.errors import EngineError

REPLY_SECONDS = 900.0
"""A reply that takes longer means a server that hangs."""

_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.25
_LIFELINE = Path(__file__).with_name("lifeline.py")


class ServerDied(Exception):
    """The server is gone; what it was asked for may be asked again after a restart."""


class Server:
    """A vLLM server of our own, and the only client of it."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._arguments = tuple(arguments)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._client: httpx.AsyncClient | None = None
        self.log = log

    async def start(self, seconds: float) -> None:
        """Start the process and wait until it answers.

        Raises:
            EngineError: It ended early or took longer than `seconds`; the message names the log.
        """
        self._directory = Path(tempfile.mkdtemp(prefix="mappa-vllm-"))
        socket = self._directory / "socket"
        transport = httpx.AsyncHTTPTransport(
            uds=str(socket),
            # A connection kept alive may be closed by the server just as it is used again, which
            # would look like a death; a new one costs nothing on this machine.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._client = httpx.AsyncClient(
            transport=transport, base_url="http://vllm", timeout=httpx.Timeout(REPLY_SECONDS)
        )
        self._process = self._spawn(socket)
        await self._until_healthy(self._process, seconds)

    def _spawn(self, socket: Path) -> subprocess.Popen[bytes]:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        server = (sys.executable, "-m", "vllm.entrypoints.openai.api_server", *self._arguments)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                (sys.executable, "-I", str(_LIFELINE), *server, "--uds", str(socket)),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    async def _until_healthy(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not await self.healthy():
            if process.poll() is not None:
                raise EngineError(f"the vLLM server ended while starting: read {self.log}")
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the vLLM server did not answer within {seconds:.0f} s: read {self.log}, "
                    "or raise engine.start_seconds"
                )
            await asyncio.sleep(_POLL_SECONDS)

    async def healthy(self) -> bool:
        """Whether the server answers and its engine lives."""
        try:
            response = await self._open_client().get("/health", timeout=10)
        except httpx.TransportError:
            return False
        return response.is_success

    async def post(self, path: str, body: Mapping[str, object]) -> httpx.Response:
        """Send `body` as JSON.

        Raises:
            ServerDied: No answer will come.
            EngineError: The server lives and refuses.
        """
        try:
            response = await self._open_client().post(path, json=body)
        except httpx.TransportError as error:
            raise ServerDied(f"{type(error).__name__} at {path}") from error
        if response.is_server_error and not await self.healthy():
            raise ServerDied(f"HTTP {response.status_code} at {path}")
        if response.is_error:
            raise EngineError(
                f"vLLM refused {path} with HTTP {response.status_code}: "
                f"{' '.join(response.text.split())[:300]} (log: {self.log})"
            )
        return response

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            raise EngineError("the vLLM server is not running: call start() first")
        return self._client

    async def stop(self) -> None:
        """End the process and all it started; safe to call twice, or before `start`."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        if self._process is not None:
            await asyncio.to_thread(_end, self._process)
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        # The server goes too: the kernel tells it when its parent, the lifeline, dies.
        process.kill()
        process.wait()
