"""Reads back from the store what the page of a run shows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mappa_core.core.records.episodes import Turn
from mappa_core.core.records.runs import EpisodeSummary, Run
from mappa_core.core.records.scores import CoachScore, ScoreRange
from mappa_core.evaluate.config import EvaluationConfig
from mappa_core.evaluate.evaluation import Evaluation, HeldOut, evaluation
from mappa_core.evaluate.report import report
from mappa_core.evaluate.run_page import Example, RunStory
from mappa_core.store.store import Store

EXAMPLES = 3
"""Of each kind."""


def read_story(store: Store, run: Run) -> RunStory:
    """Read everything the page shows."""
    figures = store.figures.list_iteration_figures(run.id)
    trained = tuple(each for each in figures if each.phase == "train")
    held_out = {each.iteration: each.success_rate for each in figures if each.phase == "held_out"}
    newest = trained[-1].iteration if trained else 0
    chosen = _extremes(store.scores.list_score_ranges(run.id, newest), EXAMPLES)
    return RunStory(
        run=run,
        iterations=trained,
        held_out={step: rate for step, rate in held_out.items() if rate is not None},
        kl=_kl(store, run),
        examples=tuple(_examples(store, chosen)),
        evaluation=_evaluation(run, store.episodes.list_episodes(run.id, "held_out")),
    )


def _evaluation(run: Run, held_out: Sequence[EpisodeSummary]) -> Evaluation | None:
    """The first step whose held-out episodes are all played against the last one."""
    played: dict[int, list[EpisodeSummary]] = {}
    for each in held_out:
        played.setdefault(each.iteration, []).append(each)
    # One that was cut short measured other problems, or fewer episodes of them.
    counts = {step: Counter(each.problem_id for each in found) for step, found in played.items()}
    most = max(counts.values(), key=Counter.total, default=None)
    steps = sorted(step for step, found in counts.items() if found == most)
    if len(steps) < 2:
        return None
    before, after = (
        HeldOut(report=report(step, played[step], ()), episodes=played[step])
        for step in (steps[0], steps[-1])
    )
    # As `mappa evaluate` has it. What was stored without a configuration has the defaults.
    config = EvaluationConfig.model_validate(run.config.get("evaluation", {}))
    return evaluation(run.name, before, after, resamples=config.bootstrap, seed=run.seed)


def _kl(store: Store, run: Run) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for agent, iteration, metrics in store.updates.list_metrics(run.id):
        if "kl_base" in metrics:
            found.setdefault(agent, {})[iteration] = metrics["kl_base"]
    return found


def _extremes(scored: Sequence[ScoreRange], each: int) -> Mapping[ScoreRange, str]:
    """The most contested, best and worst of scored actions, `each` of a kind, none twice."""
    contested = [one for one in scored if one.highest > one.lowest]
    ranked = {
        "most contested": sorted(contested, key=lambda one: one.lowest - one.highest),
        "best": sorted(scored, key=lambda one: -one.trained),
        "worst": sorted(scored, key=lambda one: one.trained),
    }
    chosen: dict[ScoreRange, str] = {}
    for why, order in ranked.items():
        fresh = [one for one in order if one not in chosen][:each]
        chosen |= dict.fromkeys(fresh, why)
    return chosen


def _examples(store: Store, chosen: Mapping[ScoreRange, str]) -> Iterator[Example]:
    """Actions with all that was said about them."""
    for one, why in chosen.items():
        episode = store.episodes.get_episode(str(one.episode_id))
        turn = episode.turns[one.turn_index]
        entries = store.scores.scores_of_episode(episode.id)
        scores = tuple(
            (each.identity.model or each.identity.coach, each.score.value, each.score.rationale)
            for each in sorted(entries, key=lambda each: not each.trained)
            if each.turn_index == turn.index and isinstance(each.score, CoachScore)
        )
        yield Example(
            why=why,
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
