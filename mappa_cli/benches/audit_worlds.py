"""`mappa bench audit-worlds`: how often the audit is wrong in worlds that it did not make.

    honest coaches    called biased (at most 5 %), suspected, and the rates printed beside that
    planted biases    called biased or suspected, and never equivalent

`runs=100` is how many runs of each world, `only=WORDS` the worlds whose name has these words.
"""

from collections.abc import Iterator, Sequence

from mappa_cli.benches.report import BenchReport, Figure, aimed
from mappa_core.audit.stress.catalogue import biased_worlds, honest_worlds
from mappa_core.audit.stress.trial import Trial, tried
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings

RUNS = 100
MOST_FALSE = 0.05
MOST_EQUIVALENT = 0.05


def bench_audit_worlds(overrides: Sequence[str], _settings: Settings) -> BenchReport:
    """Audit every world of the catalogue many times.

    Raises:
        ConfigError: An override other than `runs=NUMBER` or `only=WORDS`, or no such world.
    """
    runs, only = _options(overrides)
    chosen = [w for w in (*honest_worlds(), *biased_worlds()) if only in w.name]
    if not chosen:
        raise ConfigError(f"no world has {only!r} in its name")
    figures = [figure for world in chosen for figure in _figures(tried(world, runs))]
    return BenchReport(bench="audit-worlds", figures=tuple(figures))


def _options(overrides: Sequence[str]) -> tuple[int, str]:
    parts = [each.partition("=") for each in overrides]
    options = {name: value for name, _, value in parts}
    runs, only = options.pop("runs", str(RUNS)), options.pop("only", "")
    if options or not runs.isdigit() or int(runs) < 1:
        raise ConfigError("bench audit-worlds takes runs=NUMBER, at least 1, and only=WORDS")
    return int(runs), only


def _figures(trial: Trial) -> Iterator[Figure]:
    name, alarmed = trial.world.name, trial.share("biased", "suspected")
    if not trial.world.honest:
        yield Figure(name=f"{name}: biased or suspected", value=alarmed, unit="of runs")
        share = trial.share("equivalent")
        yield aimed(f"{name}: equivalent", share, "of runs", at_most=MOST_EQUIVALENT)
        return
    biased = trial.share("biased")
    yield aimed(f"honest, {name}: biased", biased, "of runs", at_most=MOST_FALSE)
    yield Figure(name=f"honest, {name}: suspected", value=alarmed, unit="of runs")
    yield Figure(name="... with 0.5 more: found", value=trial.found / trial.runs, unit="of runs")
    for printed, value in trial.printed.items():
        yield Figure(name=f"... printed: {printed}", value=value, unit="of runs")
