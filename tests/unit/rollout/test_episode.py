"""How the actions of an episode are sampled: seeds and temperatures."""

from dataclasses import replace

from mappa_core.core.records.episodes import Episode, Phase
from mappa_core.rollout.actions import generation_seed, sampling_of
from mappa_core.rollout.config import RolloutConfig
from mappa_core.rollout.episode import new_episode
from tests.builders import make_policy, make_problem, make_run, make_turn

RUN = make_run()
PROBLEMS = [make_problem(f"What is 2 + {index}?") for index in range(10)]


def episode(phase: Phase = "train", iteration: int = 1, problem: int = 0, rollout: int = 0):
    return new_episode(RUN.id, phase, iteration, PROBLEMS[problem], rollout)


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
    config = RolloutConfig(temperature=1.0, top_p=0.9)
    train, held_out = (sampling_of(config, phase, 0.0) for phase in ("train", "held_out"))
    assert (train.temperature, train.top_p) == (1.0, 0.9)
    assert (held_out.temperature, held_out.top_p) == (0.0, 1.0)


def test_a_new_episode_is_named_by_its_content() -> None:
    assert episode() == episode()
    assert len({episode().id, episode(rollout=1).id, episode("held_out").id}) == 3
    assert isinstance(episode(), Episode)
    assert episode().turns == ()
