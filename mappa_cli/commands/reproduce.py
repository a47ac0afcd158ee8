"""`mappa reproduce mathchat`: the paper's experiment, and first what it would take and could show.

The forecast says what it assumes. Coach prices are the preset's; GPU hours follow from the tokens
and from what an H100 sustains; power follows from playing the planned comparison out.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from mappa_cli.commands.options import Json
from mappa_cli.printing.console import open_console, titled
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.evaluate.power import power
from mappa_core.train.memory_plan import GB, ModelShape, plan

PRESETS = {"mathchat": "configs/mathchat_paper.yaml"}
REPORTED_GAINS = (0.05, 0.175)
"""Least and largest gain on AIME in the paper's abstract (arXiv 2601.23228)."""
BEFORE = 0.6
"""Assumed success before training; power depends on it weakly."""
FILLED = 0.5
"""Share of its token budget that an action is assumed to use."""
GPU_BYTES = 80 * GB
BANDWIDTH = 3.35e12 * 0.6
"""Bytes per second an H100 reads while it decodes: 60 % of its peak."""
FLOPS = 989e12 * 0.35
"""Per second in an update: 35 % of an H100's bfloat16 peak."""
FLOPS_PER_TOKEN = 8
"""Per weight: 6 for forward and backward, 2 for layers computed twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of the forecast and where it comes from."""

    name: str
    value: float
    unit: str
    because: str


def forecast(config: TrainConfig, settings: Settings) -> tuple[Line, ...]:
    """Cost, GPU hours and power of a preset.

    Raises:
        ConfigError: Its problems, rubrics or model's shape are not at hand.
    """
    return (*_cost(config, settings), *_gpu_hours(config), *_power(config))


def _cost(config: TrainConfig, settings: Settings) -> list[Line]:
    from mappa_cli.commands.forecast import forecast_run
    from mappa_core.rollout.problems import problem_source
    from mappa_core.rollout.teams import load_team

    team = load_team(config.team, config.prompts)
    # Nobody is asked, so that a key which is not there yet is no reason to stop.
    keyed = settings.model_copy(
        update={
            "google_api_key": settings.google_api_key or SecretStr("none"),
            "vertex_project": settings.vertex_project or "none",
        }
    )
    found = forecast_run(config, keyed, team, problem_source(config.problems))
    return [
        line
        for name, one in found
        for line in (
            Line(name=f"{name}: calls", value=one.calls, unit="calls", because="one per action"),
            Line(
                name=f"{name}: cost",
                value=one.cost_usd,
                unit="dollars",
                because="prompts as they are sent, by the configured prices",
            ),
        )
    ]


def _gpu_hours(config: TrainConfig) -> list[Line]:
    from mappa_cli.doctor import shape_for
    from mappa_core.rollout.teams import load_team

    shape = shape_for(config.model, Settings())
    agents = load_team(config.team, config.prompts).agents
    turns = sum(agent.max_turns for agent in agents)
    tokens = FILLED * config.rollout.max_tokens
    held_out = config.problems.held_out_size * config.evaluation.samples
    rounds = 1 + (
        config.rollout.iterations // config.evaluation.every if config.evaluation.every else 1
    )
    trained = config.rollout.iterations * config.rollout.problems
    trained *= config.rollout.episodes_per_problem
    sampled = (trained + rounds * held_out) * turns * tokens
    decode = sampled * _seconds_per_token(shape, config, len(agents), tokens)
    # A prompt holds about what the agent before wrote: two actions' tokens are read per action.
    learn = trained * turns * 2 * tokens * FLOPS_PER_TOKEN * shape.parameters / FLOPS
    return [
        Line(name="sampled tokens", value=sampled, unit="tokens", because="half of each budget"),
        Line(
            name="sampling",
            value=decode / 3600,
            unit="H100 hours",
            because="weights read once a step at 60 % of the bandwidth, as many sequences as fit",
        ),
        Line(
            name="updates",
            value=learn / 3600,
            unit="H100 hours",
            because="8 FLOPs per weight and token at 35 % of the peak; offload not counted",
        ),
    ]


def _seconds_per_token(shape: ModelShape, config: TrainConfig, agents: int, tokens: float) -> float:
    cached = plan(shape, config, agents, GPU_BYTES).cached_tokens
    together = max(1.0, min(config.rollout.concurrency, cached / (2 * tokens)))
    per_step = 2 * shape.parameters + together * 2 * tokens * shape.cache_bytes_per_token
    return per_step / BANDWIDTH / together


def _power(config: TrainConfig) -> list[Line]:
    problems, samples = config.problems.held_out_size, config.evaluation.samples
    because = f"{problems} problems x {samples}, paired; {BEFORE:.0%} solved before"
    return [
        Line(
            name=f"chance to see a gain of {gain * 100:.1f} points",
            value=power(problems=problems, samples=samples, before=BEFORE, gain=gain),
            unit="share",
            because=because,
        )
        for gain in (0.0, *REPORTED_GAINS)
    ]


def reproduce(
    what: Annotated[str, typer.Argument(help="mathchat.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted overrides of the preset.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take and could show, and stop.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repeat the paper's experiment; start with --dry-run."""
    config = _preset(what, overrides or ())
    if not dry_run:
        raise ConfigError(
            f"look at `mappa reproduce {what} --dry-run` first, then start it with: "
            f"mappa train --config {PRESETS[what]}"
        )
    lines = forecast(config, Settings())
    if as_json:
        typer.echo(json.dumps([[line.name, line.value, line.unit] for line in lines]))
        return
    table = titled(f"{config.name}: {config.rollout.iterations} iterations of {config.model}")
    for column in ("figure", "value", "unit", "because"):
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(line.name, f"{line.value:,.2f}", line.unit, line.because)
    open_console().print(table)


def _preset(what: str, overrides: Sequence[str]) -> TrainConfig:
    if what not in PRESETS:
        raise ConfigError(f"nothing is called {what} here: choose from {', '.join(PRESETS)}")
    return load_config(Path(PRESETS[what]), overrides)
