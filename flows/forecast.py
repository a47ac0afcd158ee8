"""What a training run's coaches will take, for `mappa train --dry-run`."""

from mappa_core import steps
from mappa_core.bootstrap import check_coach
from mappa_core.coaching.forecast import Forecast, assumed_turn, forecast
from mappa_core.config import CoachModelConfig, TrainConfig
from mappa_core.domain import ids
from mappa_core.domain.records import CoachCase, Episode, LabelVisibility, Problem
from mappa_core.ports import ProblemSource
from mappa_core.scoring import case_of
from mappa_core.settings import Settings
from mappa_core.teams.base import Team

SAMPLED_PROBLEMS = 32
"""Of the first iterations; their statements stand for all."""


def forecast_run(
    config: TrainConfig, settings: Settings, team: Team, problems: ProblemSource
) -> tuple[tuple[str, Forecast], ...]:
    """What each coach that costs money will take over the whole run; empty for rule coaches.

    Raises:
        ConfigError: A coach could not answer: no key, no rubric.
    """
    rollout, coach = config.rollout, config.coach
    planned = [
        problem
        for iteration in range(1, rollout.iterations + 1)
        for problem in steps.problems_of_iteration(
            problems.train(), iteration, rollout.problems, config.seed
        )
    ]
    sample = planned[:SAMPLED_PROBLEMS]
    cases = [case for problem in sample for case in _cases(config, team, problem)]
    episodes = len(planned) * rollout.episodes_per_problem / len(sample)
    asked: list[tuple[str, CoachModelConfig, float]] = [
        ("coach", coach, episodes * coach.repeats),
        ("second coach", coach.second, episodes * coach.second.share),
    ]
    found: list[tuple[str, Forecast]] = []
    for name, model, times in asked:
        rubrics = check_coach(model, settings, team) if times else None
        if rubrics is not None:
            found.append((f"{name} {model.model}", forecast(cases, rubrics, model).times(times)))
    return tuple(found)


def _cases(config: TrainConfig, team: Team, problem: Problem) -> list[CoachCase]:
    """The cases of one episode as it may turn out."""
    run_id = ids.content_id("forecast")
    episode = _assumed_episode(config, team, steps.new_episode(run_id, "train", 1, problem, 0))
    visibility = config.coach.visibility
    return [
        case_of(
            episode,
            turn,
            visibility.get(turn.agent, LabelVisibility.NEVER),
            duties=steps.duties_of(team),
        )
        for turn in episode.turns
    ]


def _assumed_episode(config: TrainConfig, team: Team, episode: Episode) -> Episode:
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
            config.rollout.max_tokens,
            runs_code=runs_code[observation.agent],
        )
        episode = episode.with_turn(turn)
    return episode
