"""What a run asks of a cluster: a bundle of CPUs and GPUs for each server and each rank.

servers of the first replica, of the second, ... ; ranks of the first update at once, ... ;
servers of local coaches
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from mappa_core.cluster.config import ClusterConfig

Node: TypeAlias = Mapping[str, float]
"""What a node has: CPU, GPU. What it does not say is no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Servers and ranks, all of one kind each, and the servers of local coaches."""

    servers: int
    server_gpus: int
    """Of each; 0 on CPUs."""
    ranks: int
    rank_gpus: int
    coach_gpus: tuple[int, ...] = ()
    """Of the server of each local coach."""
    cpus: float
    """Of each of them."""

    @property
    def bundles(self) -> tuple[Mapping[str, float], ...]:
        """Ray's words for it: servers first, then ranks, then coaches."""
        return (
            *(_bundle(self.cpus, self.server_gpus) for _ in range(self.servers)),
            *(_bundle(self.cpus, self.rank_gpus) for _ in range(self.ranks)),
            *(_bundle(self.cpus, gpus) for gpus in self.coach_gpus),
        )

    @property
    def first_rank(self) -> int:
        """The place of the first rank's bundle among all."""
        return self.servers

    @property
    def first_coach(self) -> int:
        """The place of the first coach's bundle among all."""
        return self.servers + self.ranks

    def __str__(self) -> str:
        parts = [
            f"{many} {what} of {self.cpus:g} CPU{'' if not gpus else f' and {gpus} GPU'}"
            for many, what, gpus in (
                (self.servers, "server(s)", self.server_gpus),
                (self.ranks, "rank(s)", self.rank_gpus),
                *((many, "coach(es)", gpus) for gpus, many in Counter(self.coach_gpus).items()),
            )
            if many
        ]
        return ", ".join(parts)


def _bundle(cpus: float, gpus: int) -> Mapping[str, float]:
    return {"CPU": cpus, "GPU": float(gpus)} if gpus else {"CPU": cpus}


def assigned(request: Request, nodes: Sequence[Node], config: ClusterConfig) -> tuple[int, ...]:
    """Say on which node each bundle would be, by its place among `nodes`; empty where none fits.

    Ray decides itself when it is asked; whether there is room, and over how many nodes, it answers
    the same.
    """
    if config.placement == "strict_pack":
        alone = (_packed(request, [node]) for node in nodes)
        found = next((number for number, each in enumerate(alone) if each), None)
        return () if found is None else (found,) * len(request.bundles)
    if config.placement == "pack":
        return _packed(request, nodes)
    apart = _packed(request, nodes, spread=True)
    if config.placement == "strict_spread":
        return apart if len({*apart}) == len(apart) else ()
    return apart or _packed(request, nodes)


def _packed(request: Request, nodes: Sequence[Node], *, spread: bool = False) -> tuple[int, ...]:
    """The widest bundles first, each on the first node that has room; spread: the emptiest."""
    free = [dict(node) for node in nodes]
    at: dict[int, int] = {}
    widest = sorted(enumerate(request.bundles), key=lambda one: -one[1].get("GPU", 0))
    for number, bundle in widest:
        fitting = [
            place
            for place, left in enumerate(free)
            if all(left.get(name, inf) >= many for name, many in bundle.items())
        ]
        if not fitting:
            return ()
        taken = Counter(at.values()) if spread else Counter[int]()
        # Of several alike it is the first.
        at[number] = place = min(fitting, key=taken.__getitem__)
        for name, many in bundle.items():
            free[place][name] = free[place].get(name, inf) - many
    return tuple(at[number] for number in range(len(request.bundles)))


def said(nodes: Sequence[Node]) -> str:
    """What nodes have, in words."""
    kinds = Counter((node.get("CPU", inf), node.get("GPU", 0)) for node in nodes)
    return "nodes have " + ", ".join(
        f"{many} x {'' if cpus == inf else f'{cpus:g} CPU and '}{gpus:g} GPU"
        for (cpus, gpus), many in sorted(kinds.items())
    )
