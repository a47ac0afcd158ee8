"""Estimates what a run would take and could show, before it is started.

The estimate says what it assumes. Coach prices are the preset's; GPU hours follow from the tokens
and from what an H100 sustains; power follows from playing the planned comparison out.
"""

from collections import Counter
from dataclasses import dataclass

from mappa_core.app.config import TrainConfig
from mappa_core.app.forecast import forecast_run
from mappa_core.app.memory import GPU_BYTES, planned, shape_for
from mappa_core.coach.forecast import FILLED
from mappa_core.core.settings import Settings
from mappa_core.evaluate.evaluation import UNKNOWN
from mappa_core.evaluate.power import power
from mappa_core.models.shape import ModelShape
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.teams import load_team

REPORTED_GAINS = (0.05, 0.175)
"""Least and largest gain on AIME in the paper's abstract (arXiv 2601.23228)."""
BEFORE = 0.6
"""Assumed success before training; power depends on it weakly."""
BANDWIDTH = 3.35e12 * 0.6
"""Bytes per second an H100 reads while it decodes: 60 % of its peak."""
FLOPS = 989e12 * 0.35
"""Per second in an update: 35 % of an H100's bfloat16 peak."""
FLOPS_PER_TOKEN = 8
"""Per weight: 6 for forward and backward, 2 for layers computed twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One figure of the estimate and where it comes from."""

    name: str
    value: float
    unit: str
    because: str


def estimate(config: TrainConfig, settings: Settings) -> tuple[Line, ...]:
    """Estimate cost, GPU hours and power of a run.

    Raises:
        ConfigError: Its problems, rubrics or model's shape are not at hand.
    """
    return (*_cost(config), *_gpu_hours(config, settings), *_power(config))


def _cost(config: TrainConfig) -> list[Line]:
    team = load_team(config.team, config.prompts, config.rollout)
    found = forecast_run(config, team, problem_source(config.problems))
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


def _gpu_hours(config: TrainConfig, settings: Settings) -> list[Line]:
    shape = shape_for(config.model, settings.models)
    agents = load_team(config.team, config.prompts, config.rollout).agents
    turns = sum(agent.max_turns for agent in agents)
    limits = sum(agent.max_turns * config.rollout.tokens_of(agent.name) for agent in agents)
    tokens = FILLED * limits / turns
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
    cached = planned(config, shape, agents, GPU_BYTES).cached_tokens
    together = max(1.0, min(config.rollout.concurrency, cached / (2 * tokens)))
    per_step = 2 * shape.parameters + together * 2 * tokens * shape.cache_bytes_per_token
    return per_step / BANDWIDTH / together


def _power(config: TrainConfig) -> list[Line]:
    """Of all held-out problems, and of each contest where there are several."""
    held_out, samples = problem_source(config.problems).held_out(), config.evaluation.samples
    contests = Counter(str(each.attributes.get("contest", UNKNOWN)) for each in held_out)
    counts = {"": len(held_out), **(contests if len(contests) > 1 else {})}
    return [
        Line(
            name=f"{name}{': ' if name else ''}chance to see a gain of {gain * 100:.1f} points",
            value=power(problems=problems, samples=samples, before=BEFORE, gain=gain),
            unit="share",
            because=f"{problems} problems x {samples}, paired; {BEFORE:.0%} solved before",
        )
        for name, problems in counts.items()
        for gain in (0.0, *REPORTED_GAINS)
    ]
