"""The bench of a cluster says what held, and what did not."""

from dataclasses import replace
from uuid import UUID

import pytest

from mappa_cli.benches.cluster import Compared, Kept, figures

pytest.importorskip("ray", reason="Ray is not installed here")
from mappa_cli.benches.cluster_run import Played

KEPT = Kept(
    actions=[("train", 1, "a"), ("train", 1, "b"), ("train", 2, "a")],
    checkpoints={("solver", 1): "aa", ("solver", 2): "bb"},
)
PLAYED = Played(
    run=UUID(int=1),
    in_rollout=True,
    in_update=True,
    servers_on=2,
    ranks_on=1,
    servers_started=4,
    ranks_started=2,
)
HELD = Compared(
    ranks=1, alone=KEPT, there=KEPT, played=PLAYED, seconds_alone=9.0, seconds_there=30.0
)


def missed(found: Compared) -> dict[str, float]:
    return {each.name: each.value for each in figures(found) if each.met is False}


def test_all_that_held_is_said_so() -> None:
    assert missed(HELD) == {}
    assert {each.name: each.value for each in figures(HELD)}["servers started again"] == 2


def test_what_differs_is_counted() -> None:
    twice = Kept(
        actions=[*KEPT.actions, KEPT.actions[-1]],
        checkpoints={("solver", 1): "aa", ("solver", 2): "cc"},
    )
    assert missed(replace(HELD, there=twice)) == {
        "actions and scores that differ": 1,
        "checkpoints that differ": 1,
    }


def test_a_node_that_was_killed_too_late_proves_nothing() -> None:
    late = replace(PLAYED, in_update=False, ranks_started=1)
    assert missed(replace(HELD, played=late)) == {
        "nodes killed in a rollout and in an update": 1,
        "ranks started again": 0,
    }


def test_two_ranks_on_one_node_prove_nothing_of_two() -> None:
    assert missed(replace(HELD, ranks=2)) == {"nodes with ranks": 1}
    assert missed(replace(HELD, ranks=2, played=replace(PLAYED, ranks_on=2))) == {}
