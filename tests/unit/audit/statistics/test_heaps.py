"""What a bias shows of itself in heaped scores, against coaches whose feeling is known."""

import numpy as np
import pytest

from mappa_core.audit.statistics.heaps import shown

ACTIONS = np.repeat(np.arange(300), 6)
POINTS = 0.5


def felt(rng: np.random.Generator, level: float = 5.0) -> np.ndarray:
    return level + rng.normal(0, 1.5, 300)[ACTIONS] + rng.normal(0, 1, len(ACTIONS))


def given(felt: np.ndarray, heaps: np.ndarray) -> np.ndarray:
    return heaps[np.abs(felt[:, None] - heaps).argmin(axis=1)]


@pytest.mark.parametrize("heaps", [(0, 5, 7, 10), (0, 2, 4, 6, 8, 10), (1, 8, 10)])
def test_as_many_scores_move_and_as_far_as_those_of_a_coach_that_feels_more(
    heaps: tuple[int, ...],
) -> None:
    rng, places = np.random.default_rng(5), np.array(heaps, dtype=float)
    feelings = [felt(rng) for _ in range(20)]
    moved = [given(each + POINTS, places) - given(each, places) for each in feelings]
    found = [shown(given(each, places), ACTIONS, POINTS, rng, 20)[0] for each in feelings]
    assert np.mean(found) == pytest.approx(np.mean(moved), abs=0.04)
    # Scores are of few values, so their squares say how many move.
    assert np.mean(np.square(found)) == pytest.approx(np.mean(np.square(moved)), rel=0.1)


def test_scores_of_any_value_move_by_the_points() -> None:
    rng = np.random.default_rng(6)
    more, _ = shown(felt(rng).clip(0, 9), ACTIONS, POINTS, rng, 5)
    assert np.abs(more - POINTS).mean() < 0.05


def test_the_end_of_the_scale_hides_what_would_show_without_it() -> None:
    rng = np.random.default_rng(7)
    scores = np.full(60, 10.0)
    more, unending = shown(scores, np.repeat(np.arange(10), 6), POINTS, rng, 3)
    assert (more == 0).all()
    assert (unending == POINTS).all()


def test_one_score_says_little_and_breaks_nothing() -> None:
    more, unending = shown(np.array([5.0]), np.array([0]), POINTS, np.random.default_rng(8), 4)
    assert more.shape == unending.shape == (1, 4)
    assert np.isfinite(more).all()
