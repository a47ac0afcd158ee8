"""Which problems an iteration plays, and with which seeds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.app.config import TrainConfig
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, Phase
from mappa_core.rollout.episode import (
    generation_seed,
    new_episode,
    problems_of_iteration,
    sampling_of,
)
from tests.builders import make_policy, make_problem, make_run, make_turn

RUN = make_run()
PROBLEMS = [make_problem(f"What is 2 + {index}?") for index in range(10)]


def played(seed: int, iterations: int, count: int) -> list[str]:
    return [
        problem.statement
        for iteration in range(1, iterations + 1)
        for problem in problems_of_iteration(PROBLEMS, iteration, count, seed)
    ]


def episode(phase: Phase = "train", iteration: int = 1, problem: int = 0, rollout: int = 0):
    return new_episode(RUN.id, phase, iteration, PROBLEMS[problem], rollout)


@given(st.integers(0, 2**31 - 1), st.integers(1, 10))
def test_each_pass_and_each_iteration_sees_a_problem_once(seed: int, count: int) -> None:
    iterations = 50 // count + 1
    statements = played(seed, iterations, count)
    assert len(statements) == iterations * count
    for size in (10, count):
        for start in range(0, len(statements) - size + 1, size):
            assert len(set(statements[start : start + size])) == size


def test_a_problem_that_comes_again_within_an_iteration_changes_places_with_a_later_one() -> None:
    # The second pass is 5 4 1 8 9 6 7 0 3 2 as it is drawn; the third iteration has the 4 already.
    numbers = [int(statement[len("What is 2 + ") : -1]) for statement in played(1, 5, 4)]
    assert numbers == [5, 3, 7, 6, 9, 0, 2, 1, 4, 8, 5, 1, 4, 8, 9, 6, 7, 0, 3, 2]


def test_more_problems_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(ConfigError, match=r"rollout.problems=11, and there are 10 to train on"):
        problems_of_iteration(PROBLEMS, 1, 11, 1)


def test_passes_differ_in_order_and_so_do_seeds() -> None:
    statements = played(1, 4, 10)
    passes = {tuple(statements[start : start + 10]) for start in range(0, 40, 10)}
    assert len(passes) == 4
    assert played(1, 1, 10) != played(2, 1, 10)
    assert played(1, 3, 4) == played(1, 3, 4)


def test_an_iteration_does_not_depend_on_those_before_it() -> None:
    # A resumed run starts in the middle.
    assert [one.statement for one in problems_of_iteration(PROBLEMS, 3, 4, 1)] == played(1, 3, 4)[
        8:
    ]


def test_every_training_action_has_a_seed_of_its_own() -> None:
    episodes = [
        episode(iteration=iteration, problem=problem, rollout=rollout)
        for iteration in (1, 2)
        for problem in (0, 1)
        for rollout in (0, 1)
    ]
    later = [one.with_turn(make_turn(make_policy(RUN))) for one in episodes]
    seeds = {generation_seed(seed, one) for seed in (1, 2) for one in (*episodes, *later)}
    assert len(seeds) == 2 * 2 * 8
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_seeds_do_not_depend_on_the_run_or_on_what_was_said() -> None:
    other = new_episode(make_run("other").id, "train", 1, PROBLEMS[0], 0)
    assert generation_seed(1, other) == generation_seed(1, episode())
    said, unsaid = (
        episode().with_turn(make_turn(make_policy(RUN), text=text)) for text in ("a", "b")
    )
    assert generation_seed(1, said) == generation_seed(1, unsaid)


def test_held_out_seeds_stay_the_same_over_iterations() -> None:
    before, after = (episode("held_out", iteration) for iteration in (0, 10))
    assert before.id != after.id
    assert generation_seed(1, before) == generation_seed(1, after)
    assert generation_seed(1, before) != generation_seed(1, episode("held_out", 0, rollout=1))
    assert generation_seed(1, before) != generation_seed(1, replace(before, phase="train"))


def test_training_explores_and_measuring_does_not() -> None:
    config = TrainConfig.model_validate(
        {"rollout": {"temperature": 1.0, "top_p": 0.9}, "evaluation": {"temperature": 0.0}}
    )
    train, held_out = (sampling_of(config, phase) for phase in ("train", "held_out"))
    assert (train.temperature, train.top_p) == (1.0, 0.9)
    assert (held_out.temperature, held_out.top_p) == (0.0, 1.0)


def test_a_new_episode_is_named_by_its_content() -> None:
    assert episode() == episode()
    assert len({episode().id, episode(rollout=1).id, episode("held_out").id}) == 3
    assert isinstance(episode(), Episode)
    assert episode().turns == ()
