"""Which problems each training iteration plays."""

import math
from collections.abc import Sequence
from random import Random

from mappa_core.core import ids
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Problem


def problems_of_iteration(
    problems: Sequence[Problem], iteration: int, count: int, seed: int
) -> tuple[Problem, ...]:
    """Draw the `count` different problems of training iteration 1, 2, ...

    Each pass sees all in a new order. Where an iteration ends one pass and begins the next, what
    it has of the one comes later in the other.

    Raises:
        ConfigError: There are fewer than `count`.
    """
    check_enough(problems, count)
    last = iteration * count
    order: list[int] = []
    for epoch in range(math.ceil(last / len(problems))):
        begun = len(order) % count
        shuffled = list(range(len(problems)))
        Random(ids.derive_seed(seed, "order", epoch)).shuffle(shuffled)  # noqa: S311
        order += _after(shuffled, order[len(order) - begun :], -len(order) % count)
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


def _after(order: Sequence[int], taken: Sequence[int], room: int) -> list[int]:
    """The order with each of `taken` among its first `room` swapped for a later one that is not."""
    mended = list(order)
    free = (at for at in range(room, len(mended)) if mended[at] not in taken)
    for at in range(room):
        if mended[at] in taken:
            other = next(free)
            mended[at], mended[other] = mended[other], mended[at]
    return mended
