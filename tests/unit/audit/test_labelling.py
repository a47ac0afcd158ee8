from uuid import UUID

from mappa_core.audit.labelling import queue
from mappa_core.audit.records import Candidate, HumanLabel, Picked
from mappa_core.core import ids


def candidate(name: str) -> Candidate:
    return Candidate(
        action_id=ids.content_id("action", name),
        episode_id=ids.content_id("episode", name),
        turn_index=0,
        agent="solver",
        task_type="a",
    )


def given(name: str, picked: Picked) -> tuple[UUID, HumanLabel]:
    action = candidate(name).action_id
    return action, HumanLabel(action_id=action, labeller="ada", score=5.0, picked=picked)


WANTED: dict[Picked, list[Candidate]] = {
    "contested": [candidate("x"), candidate("y")],
    "unsure": [candidate("x"), candidate("u")],
    "random": [candidate("r"), candidate("x"), candidate("s")],
}


def names(found: list[tuple[Candidate, Picked]]) -> list[tuple[str, Picked]]:
    by_id = {candidate(name).action_id: name for name in "xyurs"}
    return [(by_id[one.action_id], picked) for one, picked in found]


def test_reasons_take_turns_and_nothing_comes_twice() -> None:
    found = names(list(queue(WANTED, {})))
    assert found[:3] == [("x", "contested"), ("u", "unsure"), ("r", "random")]
    # The sample draws x although it was shown as contested: without it, it would be no sample.
    assert found[3:] == [("y", "contested"), ("x", "random"), ("s", "random")]


def test_what_is_labelled_is_left_out_but_for_the_sample() -> None:
    known = dict([given("x", "contested"), given("r", "random")])
    assert names(list(queue(WANTED, known))) == [
        ("y", "contested"),
        ("u", "unsure"),
        ("x", "random"),
        ("s", "random"),
    ]
    assert names(list(queue(WANTED, known, only="contested"))) == [("y", "contested")]
