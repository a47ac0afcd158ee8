"""Runs and their iterations, a line each."""

from dataclasses import replace

from mappa_cli.printing.runs import iteration_lines
from mappa_core.core import ids
from tests.builders import make_summary


def test_an_iterations_mean_score_is_of_its_actions_as_training_says_it() -> None:
    summary = make_summary(ids.problem_id("a"), success=True, answer="5")
    short = replace(summary, phase="train", mean_score=9.0, scored=3)
    long = replace(short, success=False, mean_score=2.0, scored=6)
    unscored = replace(short, mean_score=None, scored=0)
    (held_out, train) = iteration_lines((summary, short, long, unscored))
    assert held_out.mean_score is None
    assert (train.episodes, train.right) == (3, 2)
    assert train.mean_score == (3 * 9 + 6 * 2) / 9
