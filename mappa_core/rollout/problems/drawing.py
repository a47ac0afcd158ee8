"""Which problems are drawn: a run's from a longer list, and an iteration's from its run's."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, TypeVar

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem

Item = TypeVar("Item")
Draw = Literal["shuffled", "stratified"]


def in_turn(
    items: Sequence[Item],
    size: int,
    seed: int,
    kind: Callable[[Item], str],
    within: Callable[[Item], str] = lambda _: "",
) -> list[Item]:
    """At most `size` of `items`, in turn over their kinds, each kind in a seeded order.

    A kind's own items come in turn over what they are `within` it.
    """
    by_kind = _grouped(items, kind)
    groups = []
    for name in sorted(by_kind):
        random = Random(ids.derive_seed("sample", seed, name))  # noqa: S311
        random.shuffle(by_kind[name])
        parts = _grouped(by_kind[name], within)
        groups.append(_interleaved([parts[part] for part in parts]))
    return _interleaved(groups)[:size]


def _grouped(items: Sequence[Item], name: Callable[[Item], str]) -> dict[str, list[Item]]:
    groups: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        groups[name(item)].append(item)
    return groups


def _interleaved(groups: Sequence[Sequence[Item]]) -> list[Item]:
    """The first of each, then the second of each, and so on."""
    longest = max(map(len, groups), default=0)
    return [group[k] for k in range(longest) for group in groups if k < len(group)]


def problems_of_iteration(
    problems: Sequence[Problem],
    iteration: int,
    count: int,
    seed: int,
    draw: Draw = "shuffled",
) -> tuple[Problem, ...]:
    """Draw the `count` different problems of training iteration 1, 2, ...

    Each pass sees all in a new order. Where an iteration ends one pass and begins the next, what
    it has of the one comes later in the other. A stratified draw gives each iteration of every
    task type what it has of all problems, give or take one or two.

    Raises:
        ConfigError: There are fewer than `count`.
    """
    check_enough(problems, count)
    kinds = [problem.task_type if draw == "stratified" else "" for problem in problems]
    last = iteration * count
    order: list[int] = []
    for epoch in range(math.ceil(last / len(problems))):
        begun = len(order) % count
        shuffled = list(range(len(problems)))
        Random(ids.derive_seed(seed, "order", epoch)).shuffle(shuffled)  # noqa: S311
        spread = _spread(shuffled, kinds, seed)
        order += _after(spread, order[len(order) - begun :], -len(order) % count, kinds)
    return tuple(problems[index] for index in order[last - count : last])


def check_enough(problems: Sequence[Problem], count: int) -> None:
    """Refuse to draw more problems for an iteration than there are.

    Raises:
        ConfigError: There are fewer than `count`.
    """
    if count > len(problems):
        raise ConfigError(
            f"rollout.problems={count}, and there are {len(problems)} to train on: lower "
            "rollout.problems, or raise problems.train_size"
        )


def _spread(order: Sequence[int], kinds: Sequence[str], seed: int) -> list[int]:
    """The order with every kind evenly over it; as it is where there is one kind.

    The k-th of the n of a kind comes at (k + u) / n of the pass, with u of the kind and the same in
    every pass, so that it stays even from one pass into the next.
    """
    totals, seen, places = Counter(kinds), Counter[str](), dict[int, float]()
    starts = {
        kind: Random(ids.derive_seed(seed, "stratum", kind)).random()  # noqa: S311
        for kind in totals
    }
    for index in order:
        kind = kinds[index]
        places[index] = (seen[kind] + starts[kind]) / totals[kind]
        seen[kind] += 1
    return sorted(order, key=places.__getitem__)


def _after(
    order: Sequence[int], taken: Sequence[int], room: int, kinds: Sequence[str]
) -> list[int]:
    """The order with each of `taken` among its first `room` swapped for a later one that is not.

    That is one of the same kind where there is one.
    """
    mended = list(order)
    for at in range(room):
        if mended[at] in taken:
            free = [other for other in range(room, len(mended)) if mended[other] not in taken]
            alike = (other for other in free if kinds[mended[other]] == kinds[mended[at]])
            other = next(alike, free[0])
            mended[at], mended[other] = mended[other], mended[at]
    return mended
