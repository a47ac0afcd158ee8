"""A problem's requests stay with one replica, and problems are spread evenly."""

from contextlib import ExitStack
from uuid import UUID

from mappa_core.core.ids import content_id
from mappa_core.rollout.engines.vllm import replicas
from mappa_core.rollout.engines.vllm.replicas import Balance


def problem(number: int) -> UUID:
    return content_id("problem", number)


def test_a_problem_stays_where_it_was_first() -> None:
    balance, found = Balance(3), dict[int, set[int]]()
    with ExitStack() as under_way:
        for _ in range(4):
            for number in range(12):
                with balance.chosen(problem(number)) as later:
                    pass
                held = under_way.enter_context(balance.chosen(problem(number)))
                found.setdefault(number, set()).update((held, later))
    assert all(len(chosen) == 1 for chosen in found.values())
    spread = [chosen for one in found.values() for chosen in one]
    assert [spread.count(replica) for replica in range(3)] == [4, 4, 4]


def test_a_new_problem_goes_where_least_is_under_way() -> None:
    balance = Balance(2)
    with balance.chosen(problem(0)) as busy, balance.chosen(problem(0)):
        with balance.chosen(problem(1)) as first, balance.chosen(problem(2)) as second:
            assert first == second == 1 - busy
        with balance.chosen(None) as of_none:
            assert of_none == 1 - busy


def test_one_after_another_problems_alternate() -> None:
    balance, found = Balance(2), list[int]()
    for number in range(6):
        with balance.chosen(problem(number)) as replica:
            found.append(replica)
    assert found == [0, 1, 0, 1, 0, 1]


def test_what_is_remembered_is_bounded() -> None:
    balance = Balance(2)
    for number in range(replicas.REMEMBERED + 2):
        with balance.chosen(problem(number)):
            pass
    # The first is new again: it goes to the one with fewer problems, as a new one does.
    with balance.chosen(problem(1)) as again:
        assert again in (0, 1)
    assert len(balance._of) == replicas.REMEMBERED  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def test_a_problem_whose_replica_is_gone_moves_and_stays_where_it_went() -> None:
    balance, found = Balance(3), list[int]()
    for among in (None, (0, 1), (1,), (0, 1, 2)):
        with balance.chosen(problem(0), among=among) as replica:
            found.append(replica)
    assert found == [0, 0, 1, 1]
