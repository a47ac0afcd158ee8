"""An iteration in figures, for the tracker and for people."""

from collections.abc import Sequence

from mappa_core.core.records.runs import IterationFigures
from mappa_core.core.records.updates import Update


def iteration_metrics(
    figures: IterationFigures, updates: Sequence[Update], seconds: float
) -> dict[str, float]:
    """One iteration as metrics `<figure>` and `<agent>/<figure>`; absent where undefined."""
    metrics = {
        "episodes": float(figures.episodes),
        "failed_episodes": float(figures.failed),
        "seconds": seconds,
    }
    if figures.success_rate is not None:
        metrics["success_rate"] = figures.success_rate
    for agent in figures.agents:
        metrics[f"{agent.agent}/actions"] = float(agent.actions)
        metrics[f"{agent.agent}/unscored"] = float(agent.unscored)
        metrics[f"{agent.agent}/tokens"] = float(agent.tokens)
        metrics[f"{agent.agent}/tool_calls"] = float(agent.tool_calls)
        if agent.mean_score is not None:
            metrics[f"{agent.agent}/score"] = agent.mean_score
    for update in updates:
        metrics |= {f"{update.agent}/{name}": value for name, value in update.metrics.items()}
    return metrics


def iteration_table(
    figures: IterationFigures, updates: Sequence[Update]
) -> list[dict[str, str | int | float | None]]:
    """One row per agent, for people."""
    metrics = {update.agent: update.metrics for update in updates}
    return [
        {
            "agent": agent.agent,
            "mean score (0-10)": _rounded(agent.mean_score),
            "actions": agent.actions,
            "unscored": agent.unscored,
            "sampled tokens": agent.tokens,
            "tool calls": agent.tool_calls,
            "loss": _rounded(metrics[agent.agent].get("loss")),
            "gradient norm": _rounded(metrics[agent.agent].get("grad_norm")),
        }
        for agent in figures.agents
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
