"""A hardened Docker container for each run, some of them started ahead of time.

    run ─▶ a waiting container, or a new one ─▶ request ─▶ reply, files ─▶ the container is gone

A container serves one run, so nothing of a run can reach the next. Starting one takes longer than
most programs, so while runs with the same limits keep coming, a few wait in reserve. Inside, our
supervisor keeps the promise of every sandbox (`entrypoint`), in Landlock where the kernel has it.
"""

import asyncio
import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor

from docker.api.client import APIClient
from docker.errors import DockerException, ImageNotFound
from docker.utils import kwargs_from_env
from requests.exceptions import RequestException

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.rollout.sandboxes import docker_container, remote
from mappa_core.rollout.sandboxes.docker_container import LABEL, Container, Engine
from mappa_core.rollout.sandboxes.remote import GRACE_SECONDS, RemoteSandbox, Reply

_log = logging.getLogger(__name__)
NAME = "docker"
IMAGE = "mappa-sandbox:local"
_IN_RESERVE = 4
_CALL_SECONDS, _STALE_SECONDS = 60, 300
_POOLS = 16
_REPLY_SLACK_BYTES, _ESCAPED = 2**22, 6
_FEW_USERS = ("name=rootless", "name=userns")


class DockerSandbox(RemoteSandbox):
    """A sandbox whose walls are a container's; the engine is the one of DOCKER_HOST."""

    def __init__(
        self,
        concurrency: int,
        *,
        packages: bool = False,
        image: str = IMAGE,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Prepare it; `start` asks the engine for containers of `image` (infra/sandbox)."""
        super().__init__(NAME, concurrency, packages=packages, grace_seconds=grace_seconds)
        self._image = image
        self._in_reserve = min(concurrency, _IN_RESERVE)
        self._threads = ThreadPoolExecutor(2 * self._in_reserve, thread_name_prefix=NAME)
        self._engine: Engine | None = None
        self._reserve: deque[Container] = deque()
        self._reserved_for: Limits | None = None
        self._starts: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Check that there is an engine with our image, and learn what holds in its containers.

        Raises:
            SandboxUnavailable: There is none, or it does not let us.
        """
        loop = asyncio.get_running_loop()
        self._engine = await loop.run_in_executor(
            self._threads, _connect, self._threads, self._image
        )
        await super().start()

    async def close(self) -> None:
        """End and remove every container of ours; safe to call twice, and without an engine."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*self._starts, return_exceptions=True)
        self._empty_reserve()
        try:
            await _remove_all(engine)
        except SandboxError as error:
            _log.warning("%s; containers that still run end by themselves", error)
        finally:
            self._threads.shutdown(wait=False)

    async def _exchange(self, files: Mapping[str, bytes], limits: Limits) -> Reply:
        if self._engine is None:
            raise SandboxError("the sandbox is closed")
        request = json.dumps(remote.as_text(files)).encode("ascii")
        container = await self._take(self._engine, limits)
        try:
            with docker_container.engine_errors():
                async with asyncio.timeout(limits.wall_seconds + self._grace_seconds):
                    await container.send(request)
                    reply = await _read_reply(container, limits)
        except BaseException:
            # Whether cancelled, late or broken: it is not to go on.
            await asyncio.shield(container.remove())
            raise
        container.leave()
        return reply

    async def _take(self, engine: Engine, limits: Limits) -> Container:
        """Take a container out of the reserve, or start one.

        The reserve is for the limits of the last run, from their second time on.
        """
        if limits != self._reserved_for:
            self._empty_reserve()
            self._reserved_for = limits
            return await docker_container.start_container(engine, limits)
        while self._reserve:
            container = self._reserve.popleft()
            if container.is_waiting():
                self._refill(engine, limits)
                return container
            container.leave()
        self._refill(engine, limits)
        return await docker_container.start_container(engine, limits)

    def _refill(self, engine: Engine, limits: Limits) -> None:
        if len(self._reserve) + len(self._starts) < self._in_reserve:
            start = asyncio.create_task(self._add_to_reserve(engine, limits))
            self._starts.add(start)
            start.add_done_callback(self._starts.discard)

    async def _add_to_reserve(self, engine: Engine, limits: Limits) -> None:
        try:
            container = await docker_container.start_container(engine, limits)
        except SandboxError:
            return  # a run that finds the reserve empty starts one, and gets the error
        if limits == self._reserved_for:
            self._reserve.append(container)
        else:
            container.leave()

    def _empty_reserve(self) -> None:
        while self._reserve:
            self._reserve.popleft().leave()


async def _read_reply(container: Container, limits: Limits) -> Reply:
    """Read the supervisor's reply; a program that took it down was killed.

    Raises:
        SandboxError: The supervisor reports a failure, or sends what none would, or more than a run
            of `limits` can give; or the engine does not confirm that it ended.
    """
    longest = _REPLY_SLACK_BYTES + _ESCAPED * 2 * limits.output_bytes
    try:
        result = remote.checked_result(await container.read_message(longest), NAME)
        size = sum(file.size_bytes for file in result.written)
        if size > limits.workspace_bytes:
            raise SandboxError(f"{NAME}: the container sends {size} bytes of files")
        return Reply(result=result, contents=await container.read(size))
    except docker_container.Ended as end:
        # The stream of an engine that stops ends as well, and that is no program's fault.
        await container.confirm_end()
        return remote.without_reply(ToolStatus.KILLED, str(end), limits)


def _connect(threads: Executor, image: str) -> Engine:
    """Connect to the engine that DOCKER_HOST names, or the machine's own.

    Raises:
        SandboxUnavailable: It does not answer, or lacks the image.
    """
    try:
        options = kwargs_from_env()
        if "tls" in options:
            raise SandboxUnavailable(
                f"{NAME}: the engine is reached over TLS, which this backend does not speak: "
                "set DOCKER_HOST to a unix:// or tcp:// address, e.g. of an ssh tunnel"
            )
        client = APIClient(**options, version="auto", timeout=_CALL_SECONDS, num_pools=_POOLS)
        security = client.info()["SecurityOptions"]
        client.inspect_image(image)
        # Their owner died between making and starting them.
        stale = {"label": LABEL, "status": ["created", "dead"]}
        _remove_listed(client, stale, _STALE_SECONDS)
    except ImageNotFound:
        raise SandboxUnavailable(
            f"{NAME}: there is no image {image}: docker build -t {image} infra/sandbox"
        ) from None
    except (DockerException, RequestException, OSError, ValueError) as error:
        raise SandboxUnavailable(f"{NAME}: {' '.join(str(error).split())}") from None
    return Engine(
        client=client,
        threads=threads,
        image=image,
        few_users=any(option.startswith(_FEW_USERS) for option in security or []),
        owner=secrets.token_hex(8),
    )


async def _remove_all(engine: Engine) -> None:
    """Remove every container of this owner."""
    mine = {"label": f"{LABEL}={engine.owner}"}
    with docker_container.engine_errors():
        await docker_container.in_thread(engine, _remove_listed, engine.client, mine, 0)


def _remove_listed(
    client: APIClient, filters: Mapping[str, str | list[str]], seconds: float
) -> None:
    """Remove the containers that `filters` find and that were made `seconds` ago or before."""
    for listed in client.containers(all=True, filters=filters):
        if time.time() - listed["Created"] >= seconds:
            docker_container.remove(client, listed["Id"])
