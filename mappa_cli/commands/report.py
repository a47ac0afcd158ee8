"""`mappa report RUN`: the run's page, from the rows in the store."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from mappa_cli.commands.options import RunName, check_file
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Turn
from mappa_core.core.records.runs import IterationFigures, Run
from mappa_core.core.records.scores import CoachScore
from mappa_core.core.settings import Settings
from mappa_core.evaluate.run_page import Example, RunStory, extremes, html
from mappa_core.store.store import Store

EXAMPLES = 3
"""Of each kind."""


def report_command(
    run: RunName,
    to: Annotated[
        Path | None, typer.Option("--to", help="The file; default RUN.html in this folder.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about a run: curves, costs, actions worth reading."""
    from mappa_core.app.databases import opened_store

    if to is not None:
        check_file(to, "--to")
    with opened_store(Settings()) as store:
        story = tell(store, store.runs.get_run(run))
    path = to or Path(f"{story.run.name}.html")
    path.write_text(html(story), "utf-8")
    typer.echo(str(path))


def tell(store: Store, run: Run) -> RunStory:
    """Everything the page shows, read back from the store."""
    summaries = store.episodes.list_episodes(run.id)
    trained = sorted({each.iteration for each in summaries if each.phase == "train"})
    measured = sorted({each.iteration for each in summaries if each.phase == "held_out"})
    iterations = tuple(
        store.figures.get_iteration_figures(run.id, "train", iteration) for iteration in trained
    )
    held_out = {
        step: store.figures.get_iteration_figures(run.id, "held_out", step).success_rate
        for step in measured
    }
    newest = max(trained, default=0)
    last = [each for each in summaries if (each.phase, each.iteration) == ("train", newest)]
    scored = (
        example
        for each in last
        for example in _examples(store, store.episodes.get_episode(str(each.id)))
    )
    return RunStory(
        run=run,
        iterations=iterations,
        held_out={step: rate for step, rate in held_out.items() if rate is not None},
        kl=_kl(store, run, iterations),
        cost_usd=store.figures.get_coach_costs(run.id),
        examples=extremes(list(scored), EXAMPLES),
    )


def _kl(
    store: Store, run: Run, iterations: tuple[IterationFigures, ...]
) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for figures in iterations:
        for agent in figures.agents:
            update = store.updates.get_update(run.id, agent.agent, figures.iteration)
            if update is not None and "kl_base" in update.metrics:
                values = found.setdefault(agent.agent, {})
                values[figures.iteration] = update.metrics["kl_base"]
    return found


def _examples(store: Store, episode: Episode) -> Iterator[Example]:
    """The scored actions of an episode with all that was said about them."""
    entries = store.scores.scores_of_episode(episode.id)
    for turn in episode.turns:
        action = ids.action_id(episode.id, turn.index)
        said = sorted(
            (each for each in entries if each.action_id == action), key=lambda e: not e.trained
        )
        scores = tuple(
            (each.identity.model or each.identity.coach, each.score.value, each.score.rationale)
            for each in said
            if isinstance(each.score, CoachScore)
        )
        if scores:
            yield Example(
                why="",
                episode_id=str(episode.id),
                agent=turn.agent,
                task_type=episode.problem.task_type,
                statement=episode.problem.statement,
                text=turn.action.text,
                output=_output(turn),
                scores=scores,
            )


def _output(turn: Turn) -> str | None:
    result = turn.tool_result
    if result is None:
        return None
    return f"{result.status.value}\n{result.stdout}{result.stderr}"
