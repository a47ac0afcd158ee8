"""Lets two passes at once compute the beginning that all of their sequences share only once.

            keys and values of the root ─▶
    giver   root + a                        taker   b        forward, layer by layer
            ◀─ their gradients                               backward, the other way

Worked examples stand at the beginning of all prompts: they are the root of both passes' trees. The
giver has it in its tree, and hands its keys and values to the taker, layer by layer. On the way
back the taker hands over the gradients of these, and the giver adds them to its own: so both get
what one tree of all sequences would.
"""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

Two: TypeAlias = tuple[Tensor, Tensor]
"""Of keys and values of the root, or their gradients; (R, H_kv, D) each."""


class OtherPassFailed(Exception):
    """The other of two passes failed, so that this one cannot end; that one's error says why."""


@contextmanager
def shared(root: "SharedRoot | None") -> Generator[None]:
    """Inside, a pass uses the root, if there is one; if it fails, so does the other pass."""
    try:
        yield
    except BaseException:
        if root is not None:
            root.abandon()
        raise


class SharedRoot:
    """R nodes that the giver computes for the taker as well; each is in a thread of its own."""

    def __init__(self, nodes: int) -> None:
        """Hold nothing yet; `nodes` is R."""
        self.nodes = nodes
        self._changed = threading.Condition()
        self._states: dict[int, Two] = {}
        self._gradients: dict[int, Two] = {}
        self._abandoned = False

    def give(self, layer: int, states: Two) -> None:
        """Hand a layer's keys and values to the taker."""
        self._put(self._states, layer, states)

    def take(self, layer: int) -> Two:
        """Wait for a layer's keys and values.

        Raises:
            OtherPassFailed: The giver failed.
        """
        return self._wait(self._states, layer)

    def give_back(self, layer: int, gradients: Two) -> None:
        """Hand the gradients of a layer's keys and values to the giver."""
        self._put(self._gradients, layer, gradients)

    def take_back(self, layer: int) -> Two:
        """Wait for the gradients of a layer's keys and values.

        Raises:
            OtherPassFailed: The taker failed.
        """
        return self._wait(self._gradients, layer)

    def abandon(self) -> None:
        """Have the other pass fail as well, where it waits for this one."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def _put(self, there: dict[int, Two], layer: int, two: Two) -> None:
        with self._changed:
            there[layer] = two
            self._changed.notify_all()

    def _wait(self, there: dict[int, Two], layer: int) -> Two:
        with self._changed:
            self._changed.wait_for(lambda: layer in there or self._abandoned)
            if layer not in there:
                raise OtherPassFailed
            return there.pop(layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootOfLayer:
    """One layer's part of it, for one of the two passes."""

    shared: SharedRoot
    layer: int
    """Its number; the same in both passes."""
    takes: bool
    """Whether this pass is the taker."""

    def keys(self, key: Tensor, value: Tensor) -> Two | None:
        """Take the root's keys and values; None for the giver, which has and gives them.

        `key` and `value` are those of the pass's own nodes.
        """
        if self.takes:
            return self.shared.take(self.layer)
        root = slice(self.shared.nodes)
        self.shared.give(self.layer, (key[root], value[root]))
        return None

    def give_gradients(self, of_key: Tensor, of_value: Tensor) -> None:
        """Hand over, as the taker, the gradients of the root's keys and values."""
        self.shared.give_back(self.layer, (of_key, of_value))

    def add_gradients(self, of_key: Tensor, of_value: Tensor) -> None:
        """Add, as the giver, the taker's to those of this pass's own nodes."""
        root = slice(self.shared.nodes)
        for total, more in zip((of_key, of_value), self.shared.take_back(self.layer), strict=True):
            total[root] += more
