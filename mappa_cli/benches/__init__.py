"""`mappa bench`: figures on this machine, as ratios within one run where it can be so.

rollout         generated tokens/s of whole rollouts over plain vLLM's, on the same requests
orchestration   share of the wall time in which engine, sandbox, coach and learner all rest
cluster         what a run on three local nodes of Ray loses when two of them are killed
many-episodes   what 2,000 episodes at once cost the process that plays them
learner         tokens/s and memory of one update over TRL's
store           a million actions written and asked for
coach           the model coach over the bare client and the ideal
sandbox         what a run costs on each backend
audit           `mappa audit` of a small run and of a million actions
audit-worlds    how often the audit is wrong in worlds that it did not make
estimators      bias of every estimator's gradient against exact ones
families        how each model family is read, against its own forward
start           seconds until a second `mappa train` plays, and where they go
quickstart      what `make train` reaches on held-out problems, for several seeds
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

if TYPE_CHECKING:
    from mappa_cli.benches.report import BenchReport

Bench: TypeAlias = "Callable[[Sequence[str], Settings], BenchReport]"
NAMES = (
    *("rollout", "orchestration", "cluster", "many-episodes", "learner", "store", "coach"),
    *("sandbox", "audit", "audit-worlds", "estimators", "families", "start", "quickstart"),
)
"""Each is a module here with a function `bench_NAME` of overrides and settings, `-` being `_`."""


def run_bench(name: str, overrides: Sequence[str], settings: Settings) -> "BenchReport":
    """Run one bench by name.

    Raises:
        ConfigError: There is no such bench, or it has no such option.
    """
    if name not in NAMES:
        raise ConfigError(f"there is no bench {name}: choose one of {', '.join(NAMES)}")
    module_name = name.replace("-", "_")
    module = import_module(f"mappa_cli.benches.{module_name}")
    return cast("Bench", getattr(module, f"bench_{module_name}"))(overrides, settings)


def bench_options(name: str, overrides: Sequence[str], **known: str) -> dict[str, str]:
    """The options of a bench: those that are `known`, with their values where none is given.

    Raises:
        ConfigError: It has no such option.
    """
    given = {key: value for key, _, value in (each.partition("=") for each in overrides)}
    if unknown := sorted(given.keys() - known):
        choice = f"choose from {', '.join(known)}" if known else "it takes none"
        raise ConfigError(f"bench {name} has no option {unknown[0]}: {choice}")
    return known | given
