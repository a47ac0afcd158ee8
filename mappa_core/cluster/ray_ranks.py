"""A learner's ranks in a Ray cluster: each is an actor's process, in a bundle of its own.

    actor of rank 0 ─▶ address and port ─▶ MASTER_ADDR, MASTER_PORT of all
    a rank, an actor or a node dies ─▶ none is alive ─▶ the learner starts all of them anew

Ranks are told their part by torch's own variables, as torchrun would tell them. `TorchTrainer` of
Ray 2.60 makes a placement group of its own, beside the one that the run has reserved.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import ray
from ray.exceptions import RayActorError, RayError

from mappa_core.cluster.rank_host import RankHost
from mappa_core.cluster.ray_places import Actor, RayPlaces
from mappa_core.core.errors import LearnerError

LOOK_SECONDS = 1.0
"""Between two looks whether they live."""
REPLY_SECONDS = 0.1
"""Between two looks for a reply."""
START_SECONDS = 120.0
"""Of an actor: for Ray to find its bundle a node, where one has died, and to start it there."""


class RayRanks:
    """Processes that are each other's ranks, until they are closed or one of them ends."""

    def __init__(
        self,
        places: RayPlaces,
        bundles: Sequence[int],
        arguments: Sequence[str],
        log: Path,
        variables: Mapping[str, str],
    ) -> None:
        """Start them, a rank in each of `bundles`, as Python with `arguments`.

        `log` is written on each one's node. Where a node dies meanwhile, all start anew.

        Raises:
            LearnerError: They cannot be started.
        """
        self._hosts: list[Actor] = []
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self._hosts = [places.actor(RankHost, bundle) for bundle in bundles]
                self._start(arguments, log, variables)
                break
            except RayError as error:
                self.close()
                if not isinstance(error, RayActorError) or time.monotonic() > until:
                    raise LearnerError(
                        f"the ranks cannot be started in the cluster ({type(error).__name__}): "
                        "look at its nodes by `ray status`"
                    ) from error
                time.sleep(LOOK_SECONDS)
        self._alive, self._looked = True, time.monotonic()
        self._asked, self._progress = self._looked, 0

    def _start(self, arguments: Sequence[str], log: Path, variables: Mapping[str, str]) -> None:
        address, port = ray.get(self._hosts[0].rendezvous.remote(), timeout=START_SECONDS)
        met = {"MASTER_ADDR": str(address), "MASTER_PORT": str(port), "LOCAL_RANK": "0"}
        ranks = {"WORLD_SIZE": str(len(self._hosts))}
        started = [
            host.start.remote(arguments, str(log), {**variables, **met, **ranks, "RANK": str(i)})
            for i, host in enumerate(self._hosts)
        ]
        ray.get(started, timeout=START_SECONDS)

    @property
    def hosts(self) -> tuple[object, ...]:
        """The actors, by rank."""
        return tuple(self._hosts)

    @property
    def alive(self) -> bool:
        """Tell whether all of them ran, a moment ago."""
        if self._alive and time.monotonic() > self._looked + LOOK_SECONDS:
            self._alive, self._looked = self._all_run(), time.monotonic()
        return self._alive

    def _all_run(self) -> bool:
        try:
            # Each node has its own clock: of any that gets on the sum is another one.
            self._progress = sum(ray.get([host.progress.remote() for host in self._hosts]))
            return all(ray.get([host.alive.remote() for host in self._hosts]))
        except RayError:
            return False

    def progress(self, task: Path) -> int:  # noqa: ARG002
        """A number that was another one when any of them had last done a part of its task."""
        return self._progress

    def hand_over(self, number: int, task: Path) -> None:
        """Give each of them the task, as a file on its node.

        Raises:
            LearnerError: One of them is not there.
        """
        data = task.read_bytes()
        try:
            ray.get([host.hand_over.remote(number, data) for host in self._hosts])
        except RayError as error:
            raise LearnerError(
                f"a rank was lost before its task ({type(error).__name__})"
            ) from error

    def reply(self, number: int, task: Path) -> bytes | None:  # noqa: ARG002
        """Read the reply of the first rank, or that of one that has failed.

        None where there is none, or nothing was looked for as it was a moment ago.
        """
        if self._alive and time.monotonic() < self._asked + REPLY_SECONDS:
            return None
        self._asked = time.monotonic()
        try:
            found = ray.get([host.reply.remote() for host in self._hosts])
        except RayError:
            return None
        return next((cast(bytes, one) for one in found if one is not None), None)

    def close(self) -> None:
        """End the actors, and the processes with them; safe to call twice."""
        self._alive = False
        while self._hosts:
            ray.kill(self._hosts.pop())
