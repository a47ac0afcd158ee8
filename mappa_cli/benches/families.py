"""`mappa bench families`: whether each model family is read as it reads itself.

A tiny random model of each, on sequences that share prefixes, branch, and are longer than its
window. Three figures:

    by tree             largest difference of the tree's log-probs from the model's own, in nats
    as it is read       the same of the reading that a learner chooses, which the figure names
    time over padded    CPU time of a forward and backward pass of that reading, over padded ones'

    mappa bench families families=mistral,gemma2
"""

import math
from collections.abc import Iterator, Sequence

from mappa_cli.benches import bench_options
from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.train.learners.families import FAMILIES, read_family
from mappa_core.train.learners.self_check import LARGEST


def bench_families(overrides: Sequence[str], _: Settings) -> BenchReport:
    """Read every family, or those that are named.

    Raises:
        ConfigError: An override other than `families=NAME,...`.
    """
    figures = tuple(figure for name in _names(overrides) for figure in _figures(name))
    return BenchReport(bench="families", figures=figures)


def _names(overrides: Sequence[str]) -> Sequence[str]:
    asked = bench_options("families", overrides, families=",".join(FAMILIES))
    names = asked["families"].split(",")
    if unknown := sorted(set(names) - FAMILIES.keys()):
        raise ConfigError(f"bench families has no {unknown[0]}: choose from {', '.join(FAMILIES)}")
    return names


def _figures(name: str) -> Iterator[Figure]:
    found = read_family(name)
    if found.tree_gap is not None and math.isfinite(found.tree_gap):
        yield Figure(name=f"{name}: by tree", value=found.tree_gap, unit="nats")
    yield aimed(f"{name}: as it is read ({found.way})", found.gap, "nats", at_most=LARGEST)
    yield Figure(name=f"{name}: time over padded", value=found.time_over_padded, unit="ratio")
