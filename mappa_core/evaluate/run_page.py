"""A run as one HTML page that needs nothing else and reads on a phone.

RunStory ─▶ headline, curves (inline SVG), examples of the best, worst and most contested actions
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mappa_core.core.records.provenance import resumed_otherwise
from mappa_core.core.records.runs import AgentFigures, IterationFigures, Run
from mappa_core.core.text import clipped, counted
from mappa_core.evaluate.evaluation import Evaluation
from mappa_core.evaluate.evaluation_tables import kind_tables
from mappa_core.pages.render import inline_svg, render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Mapping[str, Mapping[int, float]]
"""Curves by name, each a value by iteration."""
INCHES = (4.8, 2.8)
BOX = {"left": 0.14, "bottom": 0.17, "right": 0.97, "top": 0.93}
"""Of the axes of every curve, so that they stand one below the other."""
TEXT_CHARS = 1500
"""Kept of each text of an example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One action worth looking at."""

    why: str
    """`best`, `worst` or `most contested`."""
    episode_id: str
    agent: str
    task_type: str
    statement: str
    text: str
    output: str | None
    """What its program wrote; None where it ran none."""
    scores: tuple[tuple[str, float, str], ...]
    """The scorer, its points of 10, and its reasons; the training score first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStory:
    """What the page tells."""

    run: Run
    iterations: tuple[IterationFigures, ...]
    held_out: Mapping[int, float]
    """Share of held-out episodes that were right, by updates."""
    kl: Series
    """Divergence from the base policy by agent; empty where the run did not compute it."""
    examples: tuple[Example, ...]
    evaluation: Evaluation | None = None
    """The first held-out measurement against the last; None before there are two."""


def html(story: RunStory) -> str:
    """The whole page."""
    return render(
        "run.html",
        title=story.run.name,
        facts=_facts(story),
        curves=[(title, inline_svg(draw, INCHES, BOX)) for title, draw in _curves(story)],
        tables=list(kind_tables(story.evaluation)) if story.evaluation else [],
        kl=story.kl,
        examples=story.examples,
        clipped=partial(clipped, limit=TEXT_CHARS),
    )


def _facts(story: RunStory) -> Mapping[str, str]:
    run, held_out = story.run, story.held_out
    facts = {
        "team": run.team,
        "status": run.status.value,
        "iterations": str(len(story.iterations)),
        "episodes": str(sum(each.episodes for each in story.iterations)),
        "code": run.code_version,
    }
    if cost := sum(each.cost_usd for each in story.iterations):
        facts["coach"] = f"{cost:.4f} dollars"
    if held_out:
        first, last = min(held_out), max(held_out)
        facts["held out, before"] = f"{held_out[first]:.1%}"
        if last != first:
            facts[f"held out, after {counted(last, 'update')}"] = f"{held_out[last]:.1%}"
    if changes := resumed_otherwise(run.provenance):
        facts["made otherwise"] = "; ".join(changes)
    return facts


def _curves(story: RunStory) -> list[tuple[str, Callable[["Axes"], None]]]:
    """Title and drawing of every curve that there are values for."""
    success = {
        each.iteration: each.success_rate
        for each in story.iterations
        if each.success_rate is not None
    }
    cost = {each.iteration: each.cost_usd for each in story.iterations if each.cost_usd}
    wanted: list[tuple[str, Series]] = [
        ("Mean score, 0 to 10", _by_agent(story, lambda agent: agent.mean_score)),
        (
            "Share of episodes that were right",
            {"training": success, "held out": story.held_out},
        ),
        ("Divergence from the base policy (KL, nats per token)", story.kl),
        ("Sampled tokens per action", _by_agent(story, lambda a: _share(a.tokens, a.actions))),
        ("Tool calls per action", _by_agent(story, lambda a: _share(a.tool_calls, a.actions))),
        ("Unscored share", _by_agent(story, lambda a: _share(a.unscored, a.actions))),
        ("Coach, dollars", {"cost": cost}),
    ]
    return [(title, _lines(series)) for title, series in wanted if any(series.values())]


def _by_agent(story: RunStory, value: Callable[[AgentFigures], float | None]) -> Series:
    series: dict[str, dict[int, float]] = {}
    for figures in story.iterations:
        for agent in figures.agents:
            if (found := value(agent)) is not None:
                series.setdefault(agent.agent, {})[figures.iteration] = found
    return series


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _lines(series: Series) -> Callable[["Axes"], None]:
    from matplotlib.ticker import MaxNLocator

    def draw(axes: "Axes") -> None:
        for name, values in series.items():
            if values:
                steps = sorted(values)
                axes.plot(steps, [values[step] for step in steps], "o-", markersize=3, label=name)
        axes.set_xlabel("iteration")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.legend(frameon=False, fontsize=9)

    return draw
