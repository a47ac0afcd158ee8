"""What Prefect records follows from what recording takes, and never costs a task run."""

from dataclasses import replace

import pytest

from mappa_core.app.config import TrainConfig
from mappa_core.app.recording import (
    MOST_SHARE,
    Pace,
    check_recorder_load,
    choose,
    pace_of,
    plan_of_recording,
    seconds_each,
    task_runs_of_phases,
)
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.runs import AgentFigures, IterationFigures
from mappa_core.evaluate.config import EvaluationConfig
from mappa_core.rollout.config import ProblemsConfig, RolloutConfig
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.tools.config import ToolsConfig

TEAM = load_team("mathchat", "small-1")
AUTO = TrainConfig()


def pace(share: float, cores: int = 2) -> Pace:
    """One at which recording actions takes `share` of the time."""
    return Pace(episodes=48, task_runs=200, seconds=200 * seconds_each(cores) / share)


def test_an_episode_is_two_task_runs_in_training_and_one_in_evaluation() -> None:
    # 12 problems x 4 episodes, each played and scored; 64 held-out problems, each played.
    found = task_runs_of_phases(AUTO, TEAM, by_action=False)
    assert found == {"iteration": 96, "evaluation": 64}


def test_actions_and_their_code_count_where_they_are_task_runs() -> None:
    config = TrainConfig(rollout=RolloutConfig(problems=1, episodes_per_problem=2))
    # Up to 1 + 2 + 1 turns, and the program of each of the Code Executor's two: 6 more per episode.
    assert task_runs_of_phases(config, TEAM, by_action=True) == {
        "iteration": 2 * (2 + 6),
        "evaluation": 64 * (1 + 6),
    }
    tools = ToolsConfig(agents={"problem_solver": ("python",)})
    armed = config.model_copy(update={"tools": tools})
    assert task_runs_of_phases(armed, TEAM, by_action=True)["iteration"] == 2 * (2 + 7)


def test_the_largest_load_that_is_recorded_whole_is_accepted() -> None:
    check_recorder_load(
        TrainConfig(rollout=RolloutConfig(problems=125, episodes_per_problem=10)), TEAM
    )


@pytest.mark.parametrize(
    ("config", "advice"),
    [
        (
            TrainConfig(rollout=RolloutConfig(problems=126, episodes_per_problem=10)),
            r"one iteration would make up to 2520 .* lower rollout\.problems",
        ),
        (
            TrainConfig(rollout=RolloutConfig(problems=79, granularity="action")),
            r"one iteration would make up to 2528 .* set rollout\.granularity=auto",
        ),
        (
            TrainConfig(
                problems=ProblemsConfig(held_out_size=500), evaluation=EvaluationConfig(samples=6)
            ),
            r"one evaluation would make up to 3000 .* lower problems\.held_out_size",
        ),
    ],
)
def test_a_larger_one_is_refused_with_what_to_change(config: TrainConfig, advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        check_recorder_load(config, TEAM)


def test_thousands_of_episodes_are_played_where_prefect_records_none() -> None:
    rollout = RolloutConfig(problems=500, episodes_per_problem=4, concurrency=2000)
    with pytest.raises(ConfigError, match=r"set rollout\.granularity=rollout"):
        check_recorder_load(TrainConfig(rollout=rollout), TEAM)
    alone = rollout.model_copy(update={"granularity": "rollout"})
    check_recorder_load(TrainConfig(rollout=alone), TEAM)


@pytest.mark.parametrize(
    ("share", "granularity"), [(MOST_SHARE - 0.001, "action"), (MOST_SHARE + 0.001, "episode")]
)
def test_actions_are_recorded_up_to_a_twentieth_of_the_time(share: float, granularity: str) -> None:
    choice = choose(AUTO, TEAM, pace(share), 2)
    assert choice.granularity == granularity
    assert f"{share:.1%} of the time" in choice.because


def test_more_cores_bear_more_and_the_callers_own_work_is_borne_by_none() -> None:
    on_two = pace(0.07)
    assert choose(AUTO, TEAM, on_two, 2).granularity == "episode"
    assert choose(AUTO, TEAM, on_two, 8).granularity == "action"
    # 20 task runs a second, which the recorder keeps up with: 5 % of a second at 4 ms each.
    assert MOST_SHARE / seconds_each(10**6) < 20


def test_without_a_pace_episodes_alone_are_recorded() -> None:
    assert choose(AUTO, TEAM, None, 2).granularity == "episode"


@pytest.mark.parametrize(
    ("problems", "iterations", "granularity", "because"),
    [
        (78, 40, "action", "of the time"),
        (79, 40, "episode", "one iteration has up to 2,528 task runs"),
        (78, 41, "episode", "the run has up to 102,336 task runs"),
    ],
)
def test_nothing_is_recorded_that_would_be_lost_or_fill_the_disk(
    problems: int, iterations: int, granularity: str, because: str
) -> None:
    rollout = RolloutConfig(problems=problems, iterations=iterations)
    choice = choose(TrainConfig(rollout=rollout), TEAM, pace(0.01), 2)
    assert choice.granularity == granularity
    assert because in choice.because


@pytest.mark.parametrize("granularity", ["rollout", "episode", "action"])
def test_what_is_asked_for_by_name_is_done(granularity: str) -> None:
    rollout = RolloutConfig.model_validate({"granularity": granularity})
    asked = TrainConfig(rollout=rollout)
    assert choose(asked, TEAM, pace(0.5), 2).granularity == granularity
    assert granularity in plan_of_recording(asked, TEAM, 2)


def test_the_pace_counts_actions_programs_and_calls() -> None:
    nothing = IterationFigures(
        phase="train", iteration=1, episodes=0, failed=0, successes=0, agents=()
    )
    solver = AgentFigures(
        agent="solver", actions=3, scored=3, unscored=0, mean_score=1.0, tokens=9, tool_calls=2
    )
    two = replace(nothing, episodes=2, agents=(solver,))
    assert pace_of(nothing, two, 4.0) == Pace(episodes=2, task_runs=5, seconds=4.0)
    # The rest of an iteration that was begun before.
    four = replace(two, episodes=4, agents=(replace(solver, actions=7, tool_calls=3),))
    assert pace_of(two, four, 4.0) == Pace(episodes=2, task_runs=5, seconds=4.0)


def test_the_plan_says_from_which_pace_on_actions_are_recorded() -> None:
    # 6 x (4 + 7 / 2) ms are 5 % of 0.9 s.
    assert "takes 0.9 s or longer" in plan_of_recording(AUTO, TEAM, 2)
    large = TrainConfig(rollout=RolloutConfig(problems=79))
    assert "loses some beyond 2,500" in plan_of_recording(large, TEAM, 2)
