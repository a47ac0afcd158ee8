"""`mappa bench cluster`: what a run on several nodes loses when two of them are killed.

    a tiny random model, three agents, two iterations, float32 on CPUs; a rank, then two
    alone        in this process, its learner's ranks by torchrun
    in a cluster local nodes of Ray, one for each of two servers and of the ranks; a server's node
                 is killed in the middle of a rollout and a rank's in the middle of an update

The two must have the same actions, scores and checkpoints, bit for bit. Nodes are processes of this
machine: what a network does between machines is not in it.
"""

import asyncio
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_cli.benches.scratch import scratch_database
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.app.services import Services, open_services
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.core.text import counted
from mappa_core.models.resolve import resolve_model
from mappa_core.store.store import Store

if TYPE_CHECKING:
    from mappa_cli.benches.cluster_run import Played

SERVERS, RANKS = 2, (1, 2)
"""In the cluster; the ranks of the first run, and of the second."""
BYTES = 2**28
"""Asked for on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a run left."""

    actions: Sequence[tuple[object, ...]]
    """With their scores."""
    checkpoints: Mapping[tuple[str, int], str]
    """Hashes of the weights, by agent and step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A run without a cluster beside the same in one."""

    ranks: int
    alone: Kept
    there: Kept
    played: "Played"
    seconds_alone: float
    seconds_there: float


def bench_cluster(overrides: Sequence[str], settings: Settings) -> BenchReport:
    """Play a run alone and in a cluster of local nodes.

    Raises:
        ConfigError: Ray or DeepSpeed is not installed.
    """
    for package in ("ray", "deepspeed"):
        if find_spec(package) is None:
            raise ConfigError(f"bench cluster needs the package {package}: install that extra")
    from mappa_cli.servers import prefect_server

    base = load_config(None, ())
    known = resolve_model(base.model, settings.models)
    # DeepSpeed and Ray say what they find and lose on standard output, which is the report's.
    with (
        redirect_stdout(sys.stderr),
        scratch_database(settings, BYTES) as database,
        prefect_server(settings),
    ):
        where = {"MAPPA_HOME": database.home, "MAPPA_DATABASE_URL": database.url}
        own = Settings.model_validate(settings.model_dump(by_alias=True) | where)
        config = _config(known, database.home / "model", overrides)
        asked = any(each.startswith("learner.deepspeed.ranks=") for each in overrides)
        played = (config.learner.deepspeed.ranks,) if asked else RANKS
        found = [asyncio.run(_compared(_with(ranks, config), own)) for ranks in played]
        told = (
            replace(figure, name=f"{counted(each.ranks, 'rank')}: {figure.name}")
            for each in found
            for figure in figures(each)
        )
        return BenchReport(bench="cluster", figures=tuple(told))


def _config(known: Path, model: Path, overrides: Sequence[str]) -> TrainConfig:
    from mappa_core.models.tiny_model import save_tiny_model

    given = (
        *("name=bench", f"model={save_tiny_model(known, model)}", "coach.exam=never"),
        *("engine.backend=transformers", "engine.device=cpu", "engine.dtype=float32"),
        *("learner.backend=deepspeed", "learner.device=cpu", "learner.dtype=float32"),
        *("learner.deepspeed.stage=2", "learner.learning_rate=0.01"),
        *("rollout.iterations=2", "rollout.problems=2", "rollout.episodes_per_problem=4"),
        *("rollout.max_tokens=4", "problems.held_out_size=4", "evaluation.samples=1"),
    )
    return load_config(None, (*given, *overrides))


def _with(ranks: int, config: TrainConfig) -> TrainConfig:
    deepspeed = config.learner.deepspeed.model_copy(update={"ranks": ranks})
    learner = config.learner.model_copy(update={"deepspeed": deepspeed})
    return config.model_copy(update={"learner": learner})


async def _compared(config: TrainConfig, settings: Settings) -> Compared:
    # Prefect reads its environment when it is imported.
    from flows.train import train
    from mappa_cli.benches.cluster_run import play_losing_two, recorded
    from mappa_core.cluster.local_nodes import local_nodes

    url, ranks = str(settings.database_url), config.learner.deepspeed.ranks
    folder = settings.home / f"ray-{ranks}"
    async with open_services(config, settings) as port:
        started = time.perf_counter()
        await train(config)
        alone, seconds_alone = _newest(port), time.perf_counter() - started
        with local_nodes(SERVERS + ranks) as cluster:
            started = time.perf_counter()
            played = await play_losing_two(train, port, config, cluster, folder)
            seconds_there = time.perf_counter() - started
        store = port.store
        return Compared(
            ranks=ranks,
            alone=Kept(actions=recorded(url, alone), checkpoints=checkpoints(store, alone)),
            there=Kept(
                actions=recorded(url, played.run), checkpoints=checkpoints(store, played.run)
            ),
            played=played,
            seconds_alone=seconds_alone,
            seconds_there=seconds_there,
        )


def _newest(port: Services) -> UUID:
    return port.store.runs.list_runs()[0].id


def checkpoints(store: Store, run: UUID) -> Mapping[tuple[str, int], str]:
    """List the hashes of a run's weights by agent and step."""
    stored = store.policies.list_checkpoints(run)
    return {(policy.agent, policy.step): checkpoint.sha256 for policy, checkpoint in stored}


def figures(found: Compared) -> Iterator[Figure]:
    """Say what held."""
    alone, there, played = found.alone, found.there, found.played
    killed = played.in_rollout + played.in_update
    yield aimed("nodes with servers", played.servers_on, "nodes", at_least=SERVERS)
    yield aimed("nodes with ranks", played.ranks_on, "nodes", at_least=found.ranks)
    yield aimed("nodes killed in a rollout and in an update", killed, "nodes", at_least=2)
    again = played.servers_started - SERVERS
    yield aimed("servers started again", again, "servers", at_least=1)
    yield aimed("ranks started again", played.ranks_started - 1, "times", at_least=1)
    yield Figure(name="actions", value=len(alone.actions), unit="actions")
    unlike = _unlike(alone.actions, there.actions)
    yield aimed("actions and scores that differ", unlike, "actions", at_most=0)
    yield Figure(name="checkpoints", value=len(alone.checkpoints), unit="checkpoints")
    hashes = (alone.checkpoints, there.checkpoints)
    names = hashes[0].keys() | hashes[1].keys()
    differ = sum(hashes[0].get(name) != hashes[1].get(name) for name in names)
    yield aimed("checkpoints that differ", differ, "checkpoints", at_most=0)
    yield Figure(name="the run alone", value=found.seconds_alone, unit="s")
    yield Figure(name="the run in the cluster", value=found.seconds_there, unit="s")


def _unlike(one: Sequence[tuple[object, ...]], other: Sequence[tuple[object, ...]]) -> int:
    """Count the rows that are not the same; what was recorded twice is one too many."""
    same = sum(mine == theirs for mine, theirs in zip(one, other, strict=False))
    return max(len(one), len(other)) - same
