"""What records refuse, and the few things they compute."""

import math
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.records.episodes import Outcome, StopReason
from mappa_core.core.records.runs import AgentFigures, IterationFigures
from mappa_core.core.records.scores import CoachScore
from tests.builders import make_episode, make_policy, make_problem, make_run, make_turn

RUN = make_run()


@given(st.floats(0, 10))
def test_every_score_between_nought_and_ten_is_a_score(value: float) -> None:
    assert CoachScore(value=value, rationale="").value == value


@pytest.mark.parametrize("value", [-0.001, 10.001, math.nan, math.inf, -math.inf])
def test_no_other_number_is(value: float) -> None:
    with pytest.raises(ValueError, match=r"lies in \[0, 10\], not"):
        CoachScore(value=value, rationale="")


def test_an_episode_grows_and_closes_without_changing_what_it_was() -> None:
    episode = make_episode(RUN, make_problem())
    solver, verifier = (make_policy(RUN, agent) for agent in ("solver", "verifier"))
    longer = (
        episode.with_turn(make_turn(solver, 0))
        .with_turn(make_turn(verifier, 1))
        .with_turn(make_turn(solver, 2))
    )
    closed = longer.closed(
        StopReason.ANSWERED, outcome=Outcome(success=True, answer="5", method="math-verify")
    )
    assert episode.turns == ()
    assert [turn.index for turn in closed.turns_of("solver")] == [0, 2]
    assert closed.turns_of("stranger") == ()
    assert (longer.stop_reason, closed.stop_reason) == (None, StopReason.ANSWERED)
    assert closed.turns == longer.turns


def test_records_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        make_problem().answer = "6"


@pytest.mark.parametrize(
    ("episodes", "failed", "successes", "rate"), [(8, 0, 2, 0.25), (8, 4, 2, 0.5), (3, 3, 0, None)]
)
def test_the_success_rate_is_over_finished_episodes(
    episodes: int, failed: int, successes: int, rate: float | None
) -> None:
    figures = IterationFigures(
        phase="train",
        iteration=1,
        episodes=episodes,
        failed=failed,
        successes=successes,
        agents=(
            AgentFigures(
                agent="solver",
                actions=1,
                scored=0,
                unscored=1,
                mean_score=None,
                tokens=3,
                tool_calls=0,
            ),
        ),
    )
    assert figures.success_rate == rate


@pytest.mark.parametrize(
    ("means", "expected"),
    [(((9.0, 3), (2.0, 6)), 13 / 3), (((0.0, 1), (None, 0)), 0.0), (((None, 0),), None)],
)
def test_an_iterations_mean_score_is_of_its_actions(
    means: tuple[tuple[float | None, int], ...], expected: float | None
) -> None:
    agents = tuple(
        AgentFigures(
            agent="solver", actions=9, scored=n, unscored=0, mean_score=mean, tokens=0, tool_calls=0
        )
        for mean, n in means
    )
    figures = IterationFigures(
        phase="train", iteration=1, episodes=3, failed=0, successes=1, agents=agents
    )
    assert figures.mean_score == expected
