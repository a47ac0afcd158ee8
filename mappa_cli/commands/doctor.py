"""`mappa doctor`: what this machine offers, and what a preset would need of a GPU."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from mappa_cli.commands.options import Json
from mappa_cli.printing.console import make_table, open_console
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.core.errors import DiskFull
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_cli.doctor import Finding
    from mappa_core.app.fitting import DiskNeed
    from mappa_core.train.memory_plan import MemoryPlan


def doctor(
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan", help="A preset: what it keeps where on this GPU or CPU, or on a GPU of 80 GB."
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus",
            min=1,
            help="Plan for so many GPUs, of the size of this machine's, or of 80 GB.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            help="Plan for a Ray cluster of so many nodes, with --gpus each; without it a preset "
            "with cluster.backend=ray is planned for the nodes that its cluster has.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what this machine offers and how to get the rest, or what a preset would need."""
    from mappa_cli.doctor import coach_keys, examine, local_coaches, recording

    if plan is not None:
        config, settings = load_config(plan, ()), Settings()
        plans = _plans(config, settings, gpus, nodes)
        disk = _disk(config, settings, plans)
        lacks = () if gpus or nodes else tuple(_shortages(config, settings, plans, disk))
        fits = all(each.fits for each in plans) and not lacks
        if as_json:
            from mappa_core.app.fitting import free_bytes

            told = {"fits": fits, "plans": [_with_totals(each) for each in plans]}
            free = free_bytes(settings.home)
            of_disk = {**asdict(disk), "total": disk.total, "free": free}
            typer.echo(json.dumps({**told, "disk": of_disk}))
        else:
            for each in plans:
                _print_plan(each)
            lines = (
                *lacks,
                _told(disk, settings),
                *coach_keys(config.coach, settings),
                *local_coaches(config.coach, settings),
                recording(config),
            )
            for line in lines:
                open_console().print(line, soft_wrap=True)
        raise typer.Exit(0 if fits else 1)
    findings = examine(Settings())
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        open_console().print(_table(findings))


def _plans(
    config: TrainConfig, settings: Settings, gpus: int | None, nodes: int | None
) -> "tuple[MemoryPlan, ...]":
    """Plan for so many GPUs; None: for those here, one where there is none, or the cluster's."""
    from mappa_core.app.cluster import gpus_of
    from mappa_core.app.memory import GPU_BYTES, plan_cluster, plan_memory
    from mappa_core.core.machine import gpu_bytes, machine_bytes
    from mappa_core.models.device import visible_gpus

    if nodes is not None:
        assumed = [{"GPU": float(gpus or 1)}] * nodes
        return plan_cluster(config, settings, assumed, gpu_bytes() or GPU_BYTES)
    if config.cluster.backend == "ray" and gpus is None:
        there, smallest = gpus_of(config.cluster)
        return plan_cluster(config, settings, there, smallest or GPU_BYTES)
    host = machine_bytes() if gpus is None else None
    return plan_memory(config, settings, gpu_bytes(), host, gpus or len(visible_gpus()) or 1)


def _disk(config: TrainConfig, settings: Settings, plans: "Sequence[MemoryPlan]") -> "DiskNeed":
    from mappa_core.app.fitting import disk_need, on_gpu
    from mappa_core.app.memory import shape_for
    from mappa_core.rollout.teams import load_team

    agents = len(load_team(config.team, config.prompts, config.rollout).agents)
    shape = shape_for(config.model, settings.models)
    return disk_need(config, shape, agents, on_gpu=on_gpu(plans))


def _told(disk: "DiskNeed", settings: Settings) -> str:
    from mappa_core.app.fitting import free_bytes
    from mappa_core.train.memory_plan import GB

    return (
        f"disk at most {ceil(disk.total / GB)} GB: {disk.checkpoints / GB:.1f} of checkpoints, "
        f"{disk.registered / GB:.1f} registered, {disk.served / GB:.1f} as served; "
        f"{free_bytes(settings.home) / GB:.0f} GB are free for {settings.home}"
    )


def _shortages(
    config: TrainConfig, settings: Settings, plans: "Sequence[MemoryPlan]", disk: "DiskNeed"
) -> Iterator[str]:
    """Say what this machine lacks beside its GPUs; nothing where a GPU is only assumed."""
    from mappa_core.app.fitting import check_space, host_shortage, on_gpu
    from mappa_core.core.machine import gpu_bytes, machine_bytes

    alone, gpu = config.cluster.backend == "none", on_gpu(plans)
    if alone and gpu:
        if gpu_bytes() is None:
            return
        if short := host_shortage(plans, machine_bytes()):
            yield short
    try:
        check_space(settings.home, disk.total)
    except DiskFull as error:
        yield str(error)


def _with_totals(planned: "MemoryPlan") -> dict[str, object]:
    return {**asdict(planned), "fits": planned.fits, "host_bytes": planned.host_bytes}


def _table(findings: "Sequence[Finding]") -> Table:
    yes, no = Text("yes", style="green"), Text("no", style="yellow")
    rows = [(yes if each.works else no, each.name, each.found, each.advice) for each in findings]
    table = make_table("", ("", "what", "found", "how to get it"), rows)
    for column in table.columns:
        column.overflow = "fold"
    return table


def _print_plan(planned: "MemoryPlan") -> None:
    """Print what a run keeps where, phase by phase."""
    from mappa_core.train.memory_plan import GB

    fits = "fits" if planned.fits else "does not fit"
    numbers = ("GPU, GB", "CPU, GB")
    rows = [
        (each.phase, each.what, f"{each.gpu_bytes / GB:.1f}", f"{each.host_bytes / GB:.1f}")
        for each in planned.items
    ]
    kind = "GPU" if planned.machine_bytes is None else "CPU"
    named = " ".join((kind, ", ".join(planned.gpus))).strip()
    title = f"{named}: {planned.limit_bytes / GB:.0f} GB, all agents: {fits}"
    table = make_table(title, ("phase", "what", *numbers), rows, numbers=numbers)
    for phase in ("rollout", "update"):
        on_host = f"{planned.host_peak(phase) / GB:.1f}"
        table.add_row(phase, "together", f"{planned.peak(phase) / GB:.1f}", on_host, style="bold")
    console = open_console()
    console.print(table)
    cache = (
        f"each cache holds {planned.cached_tokens:,} tokens; the longest sequence has "
        f"{planned.longest:,}; "
    )
    of_each = " for each" if len(planned.gpus) > 1 else ""
    on_host = f"CPU at most {ceil(planned.host_bytes / GB)} GB{of_each}"
    console.print((cache if planned.longest else "") + on_host)
