"""Computes a minibatch's micro-batches two at a time on a CPU, each on its half of the cores.

Half of a pass's operations are too small for several cores, or wait until all of them are done, so
a pass takes one core and a half of two. Two passes that have a core each take both.

The largest come first. What is freed then has room for what comes after, where passes in any order
leave memory in pieces; and two of one size, whose sums are added in order, do not wait for each
other.

Each pass adds its gradients to the parameters' `.grad`, parameter by parameter, after the passes
before it: floating-point sums depend on their order, and an update repeats to the bit.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from mappa_core.train.shared_root import OtherPassFailed

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 2
"""More than two share memory and caches, and nothing is left to fill."""


class Passes:
    """Runs passes of a model, several at once where there are cores for them."""

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], *, threads: int, budget_tokens: int
    ) -> None:
        """Prepare it.

        Args:
            parameters: Those that take a gradient.
            threads: Of the CPU, for all passes together; fewer than there are passes, and these
                follow each other, with the same result. 0 where there is one pass at a time: on a
                GPU, and of a model that keeps something of the pass under way.
            budget_tokens: Of all passes that run at once. One that takes more than its share of
                them runs alone, on all cores.
        """
        self.at_once = AT_ONCE if threads else 1
        self._threads, self._share = threads, budget_tokens // self.at_once
        self._order = _Order()
        if threads >= AT_ONCE:
            self._workers = ThreadPoolExecutor(self.at_once, thread_name_prefix="pass")
            for parameter in parameters:
                self._order.follow(parameter)

    @property
    def share_tokens(self) -> int:
        """Give the tokens of the largest pass that has another beside it; 0 where none has."""
        return self._share if self._threads >= AT_ONCE else 0

    @property
    def number(self) -> int:
        """Say which of the passes at once this thread computes, from 0; -1 where it is alone."""
        return self._order.number

    @contextmanager
    def in_order(self, key: object) -> Generator[None]:
        """Enter a pass's block of this key after those of the passes before have been left."""
        self._order.wait(id(key))
        yield
        self._order.done(id(key))

    def run(self, work: Callable[[T], R], parts: Sequence[T], size: Callable[[T], int]) -> list[R]:
        """Give what `work` makes of each part, of `size` tokens, those of the largest first.

        Two of one size that follow each other in `parts` are begun one after the other, the first
        of them first. Raises what one of them raised, when all have ended.
        """
        parts = sorted(parts, key=size, reverse=True)
        alone = [part for part in parts if size(part) > self._share]
        beside = parts[len(alone) :]
        if self._threads < AT_ONCE or len(beside) == 1:
            return [work(part) for part in (*alone, *beside)]
        return [*map(work, alone), *self._at_once(work, beside)]

    def _at_once(self, work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
        def one(number: int) -> R:
            torch.set_num_threads(self._threads // self.at_once)
            with self._order.turn(number):
                return work(parts[number])

        self._order.open(len(parts))
        begun = [self._workers.submit(one, number) for number in range(len(parts))]
        wait(begun)
        # torch keeps the number by thread, and gives new threads the last one that was set.
        torch.set_num_threads(self._threads)
        failures = [error for each in begun if (error := each.exception()) is not None]
        # One that fails for another's failure says nothing.
        failures.sort(key=lambda error: isinstance(error, OtherPassFailed))
        if failures:
            raise failures[0]
        return [each.result() for each in begun]


class _Order:
    """Has passes add to a parameter's gradient one after another, in the order of their numbers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._added: dict[int, set[int]] = {}
        """Of each pass that has not ended: what it has added to, by its id."""
        self._mine = threading.local()
        """With the number of the pass that a thread computes, where others run beside it."""

    @property
    def number(self) -> int:
        """Give the pass of this thread; -1 where it is alone."""
        return getattr(self._mine, "number", -1)

    def follow(self, parameter: torch.nn.Parameter) -> None:
        """Have every pass wait for its turn at this parameter."""
        key = id(parameter)

        def before(_: Tensor) -> None:
            self.wait(key)

        def after(_: Tensor) -> None:
            self.done(key)

        parameter.register_hook(before)
        parameter.register_post_accumulate_grad_hook(after)

    def wait(self, key: int) -> None:
        """Wait until the passes before this thread's have added to what has this id."""
        number = self.number
        with self._changed:
            self._changed.wait_for(lambda: self._is_turn(number, key))

    def done(self, key: int) -> None:
        """Let the passes after this thread's add to it."""
        with self._changed:
            self._added.get(self.number, set[int]()).add(key)
            self._changed.notify_all()

    def open(self, passes: int) -> None:
        """Expect so many."""
        self._added = {number: set() for number in range(passes)}

    def _is_turn(self, number: int, key: int) -> bool:
        return all(key in added for other, added in self._added.items() if other < number)

    @contextmanager
    def turn(self, number: int) -> Generator[None]:
        """Inside, this thread computes the pass of that number."""
        self._mine.number = number
        try:
            yield
        finally:
            del self._mine.number
            with self._changed:
                del self._added[number]
                self._changed.notify_all()
