"""Which sandbox is chosen: the table of backends, and the first of them that proves itself here."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from mappa_core.core.errors import SandboxError, SandboxUnavailable
from mappa_core.rollout.config import Runtime
from mappa_core.rollout.protocols import Sandbox
from mappa_core.rollout.sandboxes import docker, probe, sandbox_fusion
from mappa_core.rollout.sandboxes.fusion_servers import FusionServers
from mappa_core.rollout.sandboxes.local import LocalSandbox
from mappa_core.rollout.sandboxes.packages import DATA_SCIENCE, importable

_log = logging.getLogger(__name__)
_HOW_TO = (
    "install bubblewrap (apt install bubblewrap), or set sandbox.backend=unsafe-subprocess "
    "to run model-written code unprotected"
)


class StartableSandbox(Sandbox, Protocol):
    """A sandbox before it is used."""

    async def start(self) -> None:
        """Get it ready, and learn its `tier`.

        Raises:
            SandboxError: It cannot be had here.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a sandbox is made for."""

    concurrency: int
    packages: bool
    """Whether programs may import the data-science packages."""
    fusion_url: str | None
    """A server's address, or those of several, separated by commas."""
    image: str
    passes: probe.Probe = probe.holds
    """What each of several servers has to pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One kind of sandbox."""

    name: str
    make: Callable[[Options], StartableSandbox]
    auto: bool = True
    """Whether `auto` may take it, which it does after `probe.holds` alone."""
    probe_if_named: probe.Probe = probe.holds
    needs_url: bool = False
    """Whether it is a server, which `auto` passes over where it has no address."""


def _sandbox_fusion(options: Options) -> StartableSandbox:
    urls = (options.fusion_url or "").replace(",", " ").split()
    if not urls:
        raise SandboxUnavailable(
            "sandbox.backend=sandbox-fusion needs the server's address in MAPPA_SANDBOXFUSION_URL"
        )
    servers = [
        sandbox_fusion.FusionSandbox(url, options.concurrency, packages=options.packages)
        for url in dict.fromkeys(urls)
    ]
    if len(servers) == 1:
        return servers[0]
    return FusionServers(servers, options.concurrency, options.passes)


def _docker(options: Options) -> StartableSandbox:
    return docker.DockerSandbox(options.concurrency, packages=options.packages, image=options.image)


def _local(name: str, options: Options) -> StartableSandbox:
    packages = importable(DATA_SCIENCE if options.packages else ())
    return LocalSandbox(name, options.concurrency, packages)


BACKENDS = (
    Backend(
        name=sandbox_fusion.NAME,
        make=_sandbox_fusion,
        needs_url=True,
        # Its walls are the business of the people who run the server.
        probe_if_named=probe.works,
    ),
    Backend(name=docker.NAME, make=_docker),
    Backend(name="bubblewrap", make=partial(_local, "bubblewrap")),
    Backend(name="landlock", make=partial(_local, "landlock")),
    Backend(
        name="unsafe-subprocess",
        make=partial(_local, "unsafe-subprocess"),
        auto=False,
        probe_if_named=probe.works,
    ),
)
"""In the order in which `auto` tries them: first what was set up on purpose (a server's address, an
engine with our image), then what happens to be installed, from strong to weak."""


async def choose_sandbox(
    backend: str,
    concurrency: int,
    runtime: Runtime = "standard-library",
    *,
    fusion_url: str | None = None,
    image: str = docker.IMAGE,
) -> Sandbox:
    """Start and probe the sandbox to use.

    Args:
        backend: `auto` for the first backend that passes its probe, or a backend's name.
        concurrency: Runs at once.
        runtime: What programs may import.
        fusion_url: Where SandboxFusion is, several addresses with commas between them; `auto`
            passes it over where there is none.
        image: What Docker makes containers of.

    Raises:
        SandboxUnavailable: No backend, or not the named one, holds on this machine.
    """
    options = Options(
        concurrency=concurrency,
        packages=runtime == "data-science",
        fusion_url=fusion_url,
        image=image,
    )
    automatic = backend == "auto"
    objections: dict[str, str] = {}
    for candidate in _candidates(backend, options):
        passes = probe.holds if automatic else candidate.probe_if_named
        sandbox = candidate.make(replace(options, passes=passes))
        objection = await _objection(sandbox, passes)
        if objection is None:
            if sandbox_fusion.NAME in objections:  # the one whose address was set up on purpose
                said = objections[sandbox_fusion.NAME]
                _log.warning("%s; using %s instead", said, sandbox.tier)
            return sandbox
        await sandbox.close()
        said = objection.removeprefix(f"{candidate.name}: ")
        objections[candidate.name] = f"{candidate.name}: {said}"
    raise SandboxUnavailable(f"{'; '.join(objections.values())}. To mend it, {_HOW_TO}")


def _candidates(backend: str, options: Options) -> list[Backend]:
    if backend != "auto":
        return [one for one in BACKENDS if one.name == backend]
    return [one for one in BACKENDS if one.auto and (options.fusion_url or not one.needs_url)]


async def _objection(sandbox: StartableSandbox, passes: probe.Probe) -> str | None:
    """Why `sandbox` may not be used here; None where it may."""
    try:
        await sandbox.start()
        return await passes(sandbox)
    except SandboxError as error:
        return str(error)
