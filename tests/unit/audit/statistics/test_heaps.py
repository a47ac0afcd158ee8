"""What a bias shows of itself in heaped scores, against coaches whose feeling is known."""

import numpy as np
import pytest

from mappa_core.audit.statistics.heaps import Scorings, shown

ACTIONS = np.repeat(np.arange(300), 6)
POINTS = 0.5
RNG = np.random.default_rng


def felt(rng: np.random.Generator, level: float = 5.0) -> np.ndarray:
    return level + rng.normal(0, 1.5, 300)[ACTIONS] + rng.normal(0, 1, len(ACTIONS))


def scored(scores: np.ndarray, actions: np.ndarray = ACTIONS) -> Scorings:
    return Scorings(scores=scores, actions=actions, agents=np.zeros_like(actions))


def given(felt: np.ndarray, heaps: np.ndarray) -> np.ndarray:
    return heaps[np.abs(felt[:, None] - heaps).argmin(axis=1)]


@pytest.mark.parametrize("heaps", [(0, 5, 7, 10), (0, 2, 4, 6, 8, 10), (1, 8, 10)])
def test_as_many_scores_move_and_as_far_as_those_of_a_coach_that_feels_more(
    heaps: tuple[int, ...],
) -> None:
    rng, places = np.random.default_rng(5), np.array(heaps, dtype=float)
    feelings = [felt(rng) for _ in range(20)]
    moved = [given(each + POINTS, places) - given(each, places) for each in feelings]
    found = [shown(scored(given(each, places)), POINTS, rng, 20)[0] for each in feelings]
    assert np.mean(found) == pytest.approx(np.mean(moved), abs=0.04)
    # Scores are of few values, so their squares say how many move.
    assert np.mean(np.square(found)) == pytest.approx(np.mean(np.square(moved)), rel=0.1)


@pytest.mark.parametrize(
    ("favourites", "step", "level"),
    [
        ((0, 5, 7, 10), 1.0, 5.0),
        ((0, 5, 7, 10), 1.0, 3.0),
        ((0, 5, 7, 10), 1.0, 6.0),
        ((5, 8), 1.0, 5.0),
        ((0, 2.5, 5, 7.5, 10), 0.5, 5.0),
    ],
)
def test_what_shows_of_a_coach_that_is_often_drawn_to_favourites(
    favourites: tuple[float, ...], step: float, level: float
) -> None:
    """They take two of five scores from other points; few actions are near 10, or none."""
    rng, every, drawn_to = RNG(9), np.arange(0, 10 + step, step), np.array(favourites)
    found, moved = [], []
    for _ in range(8):
        feeling, pulled = felt(rng, level), rng.random(len(ACTIONS)) < 0.4
        before, after = (
            np.where(pulled, given(each, drawn_to), given(each, every))
            for each in (feeling, feeling + POINTS)
        )
        moved.append((after - before).mean())
        found.append(shown(scored(before), POINTS, rng, 10)[0].mean())
    assert np.mean(found) == pytest.approx(np.mean(moved), abs=0.015)


def test_an_agent_whose_scores_vary_little_hides_nothing_of_the_others() -> None:
    """One agent's scores are 8 to 10, where the end of the scale hides a part."""
    rng, whole = RNG(10), np.arange(11.0)
    agents = (ACTIONS % 2).astype(np.int64)
    feeling = np.where(agents == 0, felt(rng), 8.8 + rng.normal(0, 0.8, len(ACTIONS)))
    scores = given(feeling, whole)
    each = Scorings(scores=scores, actions=ACTIONS, agents=agents)
    moved = given(feeling + POINTS, whole) - scores
    found = shown(each, POINTS, rng, 20)[0]
    for agent in (0, 1):
        own = agents == agent
        assert found[own].mean() == pytest.approx(moved[own].mean(), abs=0.05)


def test_scores_of_any_value_move_by_the_points() -> None:
    rng = np.random.default_rng(6)
    more, _ = shown(scored(felt(rng).clip(0, 9)), POINTS, rng, 5)
    assert np.abs(more - POINTS).mean() < 0.05


def test_the_end_of_the_scale_hides_what_would_show_without_it() -> None:
    rng = np.random.default_rng(7)
    scores = np.full(60, 10.0)
    more, unending = shown(scored(scores, np.repeat(np.arange(10), 6)), POINTS, rng, 3)
    assert (more == 0).all()
    assert (unending == POINTS).all()


def test_one_score_says_little_and_breaks_nothing() -> None:
    more, unending = shown(scored(np.array([5.0]), np.array([0])), POINTS, RNG(8), 4)
    assert more.shape == unending.shape == (1, 4)
    assert np.isfinite(more).all()
