"""SandboxFusion over HTTP: a thin client of `POST /run_code`, and our own supervisor behind it.

The service alone would lose what a team needs: it truncates output silently, has no globs, caps no
process tree, and tells nothing about files read. So each request brings our supervisor along
(`entrypoint`), and the service gives the walls. What those hold is in docs/security.md.

A program is never run twice: only a connection that was refused is tried again.
"""

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from typing import Literal

import httpx
from pydantic import BaseModel, ValidationError

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.sandboxes import remote
from mappa_core.rollout.sandboxes.remote import GRACE_SECONDS, RemoteSandbox, Reply
from mappa_core.rollout.sandboxes.supervisor import messages

NAME = "sandbox-fusion"
_NETWORK_SHARE = 1.5
"""How much longer than the service we wait, in units of its grace."""
_CONNECT_RETRIES = 3
"""Of a connection only: nothing was sent, so trying again cannot run a program twice."""
_ANSWER_SLACK_BYTES = 2**28
_BOOT = (
    f"import os, sys; sys.path.insert(0, os.path.abspath('{messages.SOURCE}')); "
    "from mappa_core.rollout.sandboxes.supervisor import entrypoint; "
    "entrypoint.on_server(os.getcwd())"
)


class _Command(BaseModel):
    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class _Answer(BaseModel):
    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    run_result: _Command | None = None
    files: dict[str, str] = {}


class FusionSandbox(RemoteSandbox):
    """A sandbox whose walls are a SandboxFusion server's."""

    def __init__(
        self,
        url: str,
        concurrency: int,
        *,
        packages: bool = False,
        grace_seconds: float = GRACE_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Prepare it; `start` asks the server at `url`, over `transport` in place of the network.

        Raises:
            SandboxUnavailable: `url` is no address.
        """
        super().__init__(NAME, concurrency, packages=packages, grace_seconds=grace_seconds)
        try:
            self._client = httpx.AsyncClient(
                base_url=url,
                trust_env=False,
                transport=transport
                or httpx.AsyncHTTPTransport(retries=_CONNECT_RETRIES, trust_env=False),
            )
        except httpx.InvalidURL as error:
            raise SandboxUnavailable(f"MAPPA_SANDBOXFUSION_URL={url}: {error}") from None
        self.url = url
        """The server's address."""

    async def start(self) -> None:
        """Check that the server answers, and learn what holds there.

        Raises:
            SandboxUnavailable: Nothing that speaks the protocol answers at the address.
        """
        try:
            await super().start()
        except SandboxError as error:
            raise SandboxUnavailable(f"{error}; see MAPPA_SANDBOXFUSION_URL") from None

    async def close(self) -> None:
        """Give connections back; safe to call twice."""
        await self._client.aclose()

    async def _exchange(self, files: Mapping[str, bytes], limits: Limits) -> Reply:
        if self._client.is_closed:
            raise SandboxError("the sandbox is closed")
        sent = {**files, messages.SOURCE: remote.source()}
        return _opened(await self._ask(remote.as_text(sent), limits), limits)

    async def _ask(self, files: Mapping[str, str], limits: Limits) -> _Answer:
        ours = limits.wall_seconds + _NETWORK_SHARE * self._grace_seconds
        body = {
            "language": "python",
            "code": _BOOT,
            "files": files,
            "fetch_files": [messages.REPLY, messages.CONTENTS],
            "run_timeout": limits.wall_seconds + self._grace_seconds,
        }
        try:
            async with asyncio.timeout(ours):
                response = await self._post(body)
        except TimeoutError:
            raise SandboxError(
                f"{self.url} did not answer in {ours:.0f} s; the program "
                "may have run, so it is not sent again"
            ) from None
        if response.is_error:
            said = " ".join(response.text.split())[:200]
            raise SandboxError(f"{self.url} answered {response.status_code}: {said}")
        if len(response.content) > _ANSWER_SLACK_BYTES + 2 * limits.workspace_bytes:
            raise SandboxError(f"{self.url} answered {len(response.content)} bytes")
        try:
            return _Answer.model_validate_json(response.content)
        except ValidationError:
            raise SandboxError(f"{self.url} does not speak SandboxFusion's protocol") from None

    async def _post(self, body: Mapping[str, object]) -> httpx.Response:
        try:
            return await self._client.post("/run_code", json=body, timeout=None)
        except httpx.ConnectError as error:
            raise SandboxUnavailable(f"{self.url} cannot be reached: {error}") from None
        except httpx.HTTPError as error:
            raise SandboxError(f"{self.url} broke off: {error or type(error).__name__}") from None


def _opened(answer: _Answer, limits: Limits) -> Reply:
    """The sealed reply, or what is known of a program that left none.

    Raises:
        SandboxError: The service failed.
    """
    ran = answer.run_result
    if answer.status == "SandboxError" or ran is None or ran.status == "Error":
        raise SandboxError(f"SandboxFusion failed: {' '.join(answer.message.split()) or 'no word'}")
    if ran.status == "TimeLimitExceeded":
        return remote.without_reply(ToolStatus.TIMEOUT, "the service ended it", limits)
    text = _fetched(answer, messages.REPLY)
    seal = f"{messages.SEAL}{hashlib.sha256(text).hexdigest()}"
    if (ran.stdout or "").rstrip("\n").rpartition("\n")[2] != seal:
        said = f"it left no sealed reply {(ran.stderr or '').strip()[-300:]}".strip()
        # The supervisor itself has no reason to be killed: its program took it down.
        code = ran.return_code
        if code is None or code < 0 or code > messages.SIGNAL_BASE:
            return remote.without_reply(ToolStatus.KILLED, said, limits)
        raise SandboxError(f"SandboxFusion: {' '.join(said.split())}")
    contents = _fetched(answer, messages.CONTENTS)
    return Reply(result=remote.checked_result(text, NAME), contents=contents)


def _fetched(answer: _Answer, name: str) -> bytes:
    try:
        return base64.b64decode(answer.files.get(name, ""), validate=True)
    except ValueError:
        raise SandboxError(f"SandboxFusion sent {name} in no base64") from None
