"""What a training run's coaches will take, for `mappa train --dry-run`."""

from statistics import mean

from mappa_core.app.checks import coached_team
from mappa_core.app.config import TrainConfig
from mappa_core.coach.case import case_of
from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.forecast import Forecast, Habits, assumed_turn, forecast
from mappa_core.coach.opening import coach_rubrics
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, Problem
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import CoachCase, LabelVisibility
from mappa_core.rollout.episode import new_episode
from mappa_core.rollout.problems.drawing import problems_of_iteration
from mappa_core.rollout.protocols import ProblemSource
from mappa_core.rollout.teams.base import Team, duties_of
from mappa_core.store.store import Store

SAMPLED_PROBLEMS = 32
"""Of the first iterations; their statements stand for all."""
SAMPLED_EPISODES = 64
"""Of an earlier run, whose habits stand for this one's."""


def habits_of(store: Store, run: Run) -> Habits:
    """How the agents and the coach of a run wrote, from its latest training episodes."""
    summaries = store.episodes.list_episodes(run.id, "train")
    episodes = [store.episodes.get_episode(str(one.id)) for one in summaries[-SAMPLED_EPISODES:]]
    written: dict[str, list[int]] = {}
    for turn in (turn for episode in episodes for turn in episode.turns):
        written.setdefault(turn.agent, []).append(len(turn.action.text))
    scores = [
        entry.score
        for one in episodes
        for entry in store.scores.scores_of_episode(one.id)
        if entry.trained
    ]
    paid = [score for score in scores if score.prompt_tokens]
    calls = sum(score.attempts for score in paid)
    sampled = sum((score.reply_tokens or 0) + (score.thought_tokens or 0) for score in paid)
    return Habits(
        characters={agent: mean(lengths) for agent, lengths in written.items()},
        calls_per_episode=calls / len(episodes) if calls else None,
        reply_tokens=sampled / calls if calls else None,
    )


def forecast_run(
    config: TrainConfig,
    team: Team,
    problems: ProblemSource,
    habits: Habits | None = None,
) -> tuple[tuple[str, Forecast], ...]:
    """What each coach that costs money will take over the whole run; empty for rule coaches.

    Raises:
        ConfigError: A rubric set or an agent's rubric is missing.
    """
    rollout, coach = config.rollout, config.coach
    planned = [
        problem
        for iteration in range(1, rollout.iterations + 1)
        for problem in problems_of_iteration(
            problems.train(), iteration, rollout.problems, config.seed, rollout.draw
        )
    ]
    sample = planned[:SAMPLED_PROBLEMS]
    known = habits or Habits()
    cases = [case for problem in sample for case in _cases(config, team, problem, known)]
    usual = len(cases) / len(sample)
    calls = 1.0 if known.calls_per_episode is None else known.calls_per_episode / usual
    episodes = len(planned) * rollout.episodes_per_problem / len(sample)
    asked: list[tuple[str, CoachModelConfig, float]] = [
        ("coach", coach, episodes * coach.repeats),
        ("second coach", coach.second, episodes * coach.second.share),
    ]
    found: list[tuple[str, Forecast]] = []
    for name, model, times in asked:
        rubrics = coach_rubrics(model, coached_team(team)) if times else None
        if rubrics is not None:
            expected = forecast(cases, rubrics, model, habits).times(times * calls)
            found.append((f"{name} {model.model}", expected))
    return tuple(found)


def _cases(config: TrainConfig, team: Team, problem: Problem, habits: Habits) -> list[CoachCase]:
    """The cases of one episode as it may turn out."""
    run_id = ids.content_id("forecast")
    begun = new_episode(run_id, "train", 1, problem, 0)
    episode = _assumed_episode(config, team, begun, habits)
    visibility = config.coach.visibility
    return [
        case_of(
            episode,
            turn,
            visibility.get(turn.agent, LabelVisibility.NEVER),
            duties=duties_of(team),
        )
        for turn in episode.turns
    ]


def _assumed_episode(config: TrainConfig, team: Team, episode: Episode, habits: Habits) -> Episode:
    runs_code = {agent.name: agent.runs_code for agent in team.agents}
    most_turns = sum(agent.max_turns for agent in team.agents)
    for index in range(most_turns):
        observation = team.next_observation(episode)
        if observation is None:
            break
        turn = assumed_turn(
            observation,
            index,
            episode.run_id,
            config.rollout.tokens_of(observation.agent),
            runs_code=runs_code[observation.agent],
            characters=habits.characters.get(observation.agent),
        )
        episode = episode.with_turn(turn)
    return episode
