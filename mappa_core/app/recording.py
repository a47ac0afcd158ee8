"""Decides what of a run Prefect records: its episodes, or each of their actions as well.

    rollout.granularity   an episode, its score, an update   an action; a program or a call
    rollout               an update alone                    -
    episode               a task run each                    -
    action                a task run each                    a task run each
    auto                  a task run each                    the same, while that loses nothing and
                                                             takes at most 5 % of the time

What it takes is forecast from what was played before: the actions of the last phase and how long it
took. Before anything was, episodes alone are recorded. Held-out episodes, neither scored nor
learned from, are faster than those of training: where even they are slow enough, so is the first
iteration, and where they are not, that is no forecast of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import IterationFigures
from mappa_core.rollout.teams.base import Team

BURST_TASK_RUNS = 2_500
"""What the recorder of any Prefect server takes. Task runs reach it as events, three each, and
one process writes them to the database: one at a time, its default, 20 to 60 task runs a second.
What waits sits in a queue of 10,000 events, and what does not fit is dropped: of 3,000 task runs
sent at once all arrived; of 6,000 almost half were lost without an error, and the flow run said
Completed. (The server that MAPPA starts writes them together, and kept 6,000 of 6,000.)"""
MOST_TASK_RUNS = 100_000
"""Of a whole run by action: each takes 20 KB of Prefect's database, so these are 2 GB."""
CALLER_SECONDS = 0.004
"""Of the training run's process, for each task run (prefect 3.8, 1,000 that do nothing)."""
RECORDER_SECONDS = 0.007
"""Of one core in the Prefect server that MAPPA starts, for each task run; the cores share it."""
MOST_SHARE = 0.05
"""Of the time, for recording actions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a phase of a run went."""

    episodes: int
    task_runs: int
    """What its actions, programs and calls are, or would be."""
    seconds: float
    """From its beginning to the next phase's, updates included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What becomes a task run, and why."""

    granularity: Literal["rollout", "episode", "action"]
    because: str


def pace_of(before: IterationFigures, after: IterationFigures, seconds: float) -> Pace:
    """The pace of a phase by its rows in the store; those that were there `before` took no time."""
    return Pace(
        episodes=after.episodes - before.episodes,
        task_runs=_actions(after) - _actions(before),
        seconds=seconds,
    )


def _actions(figures: IterationFigures) -> int:
    return sum(agent.actions + agent.tool_calls for agent in figures.agents)


def choose(
    config: TrainConfig, team: Team, pace: Pace | None, cores: int, *, of_faster: bool = False
) -> Choice:
    """Choose what becomes a task run of the next phase.

    Args:
        config: The run's; only `rollout.granularity=auto` leaves a choice.
        team: Who plays.
        pace: Of a phase like the next one; None where nothing was played yet.
        cores: That the run and Prefect's server share.
        of_faster: `pace` is of held-out episodes, and the next phase trains.
    """
    asked = config.rollout.granularity
    if asked != "auto":
        return Choice(granularity=asked, because="as configured")
    if lost := _lost(config, team):
        return Choice(granularity="episode", because=lost)
    if pace is None or not pace.episodes:
        return Choice(granularity="episode", because="nothing was played yet that says its cost")
    share = pace.task_runs * seconds_each(cores) / pace.seconds
    because = f"recording actions takes {share:.1%} of the time"
    if share <= MOST_SHARE:
        return Choice(granularity="action", because=because)
    if of_faster:
        because = (
            f"held-out episodes are too fast for their actions ({share:.1%} of the time), and how "
            "slow training is shows after an iteration of it"
        )
        return Choice(granularity="episode", because=because)
    return Choice(
        granularity="episode",
        because=f"{because}, above {MOST_SHARE:.0%}; rollout.granularity=action does it all the "
        "same",
    )


def plan_of_recording(config: TrainConfig, team: Team, cores: int) -> str:
    """Say before a run what becomes a task run of Prefect, in one sentence."""
    asked = config.rollout.granularity
    if asked == "rollout":
        return "Prefect records no episodes (rollout.granularity=rollout): the store has them"
    if asked != "auto":
        return f"Prefect records every {asked} (rollout.granularity={asked})"
    if lost := _lost(config, team):
        return f"Prefect records episodes and not their actions: {lost}"
    each = seconds_each(cores)
    seconds = task_runs_of_actions(config, team) * each / MOST_SHARE
    return (
        "Prefect records actions beside episodes where an episode, learning from it included, "
        f"takes {seconds:.2g} s or longer ({each * 1000:.0f} ms an action on "
        f"{cores} cores, at most {MOST_SHARE:.0%} of the time)"
    )


def seconds_each(
    cores: int, *, caller: float = CALLER_SECONDS, server: float = RECORDER_SECONDS
) -> float:
    """What a task run costs the run, in seconds, by what it takes of a core in both processes."""
    return caller + server / cores


def check_recorder_load(config: TrainConfig, team: Team) -> None:
    """Refuse a run one of whose phases could make more task runs than Prefect records.

    Raises:
        ConfigError: Too many; the message says how to have fewer.
    """
    if config.rollout.granularity == "rollout":
        return
    phase, task_runs = _largest(config, team, by_action=config.rollout.granularity == "action")
    if task_runs <= BURST_TASK_RUNS:
        return
    fewer = (
        "set rollout.granularity=auto"
        if config.rollout.granularity == "action"
        else "set rollout.granularity=rollout, which leaves episodes to the store, or lower "
        + ("problems.held_out_size" if phase == "evaluation" else "rollout.problems")
    )
    raise ConfigError(
        f"one {phase} would make up to {task_runs} Prefect task runs and its recorder loses some "
        f"beyond {BURST_TASK_RUNS}: {fewer}"
    )


def task_runs_of_phases(config: TrainConfig, team: Team, *, by_action: bool) -> Mapping[str, int]:
    """Task runs of one training iteration and of one evaluation, at most.

    An episode is one, and its scoring another; by action each of its actions and each program or
    call is one more.
    """
    rollout, inside = config.rollout, task_runs_of_actions(config, team) if by_action else 0
    return {
        "iteration": rollout.problems * rollout.episodes_per_problem * (2 + inside),
        "evaluation": config.problems.held_out_size * config.evaluation.samples * (1 + inside),
    }


def task_runs_of_actions(config: TrainConfig, team: Team) -> int:
    """Actions, programs and calls of one episode, at most."""
    own = config.tools.agents
    return sum(
        agent.max_turns * (2 if own.get(agent.name, agent.tools) else 1) for agent in team.agents
    )


def _largest(config: TrainConfig, team: Team, *, by_action: bool) -> tuple[str, int]:
    phases = task_runs_of_phases(config, team, by_action=by_action)
    return max(phases.items(), key=lambda phase: phase[1])


def _lost(config: TrainConfig, team: Team) -> str:
    """Why task runs would be lost, or be too many to keep, by action; nothing where not."""
    phase, task_runs = _largest(config, team, by_action=True)
    if task_runs > BURST_TASK_RUNS:
        return (
            f"with them one {phase} has up to {task_runs:,} task runs, and Prefect's recorder "
            f"loses some beyond {BURST_TASK_RUNS:,}"
        )
    phases = task_runs_of_phases(config, team, by_action=True)
    whole = config.rollout.iterations * phases["iteration"]
    if whole > MOST_TASK_RUNS:
        return (
            f"with them the run has up to {whole:,} task runs, and beyond {MOST_TASK_RUNS:,} they "
            "take more than 2 GB of Prefect's database"
        )
    return ""
