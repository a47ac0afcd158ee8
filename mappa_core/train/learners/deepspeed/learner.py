"""Learns by DeepSpeed on ranks of their own.

update ─▶ task file ─▶ N ranks of torchrun ─▶ checkpoint + reply file ─▶ UpdateReport

Checkpoints are those of the torch learner, weights and moments by name, so that a run may go on
with another learner, another stage or another number of ranks.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from mappa_core.cluster.storage import Storage
from mappa_core.core.errors import ConfigError, DiskFull, LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.scores import ScoredAction
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.checkpoint_learner import CheckpointLearner, UpdateJob, UpdateResult
from mappa_core.train.learners.deepspeed.exchange import RankReply, RankTask, written_task
from mappa_core.train.learners.deepspeed.launch import Launcher, Ranks, Torchrun


class DeepspeedLearner(CheckpointLearner):
    """Hands every call to ranks, and loads nothing itself.

    Ranks are started by the first call and do all later ones. Calls at once, up to
    `updates_at_once`, have ranks and devices of their own.
    """

    def __init__(
        self,
        base_model: Path | str,
        checkpoints_directory: Path,
        config: LearnerConfig,
        *,
        threads: int | None = None,
        devices: Sequence[str] = (),
        launcher: Launcher | None = None,
        storage: Storage | None = None,
    ) -> None:
        """Keep what it is to work with; as `CheckpointLearner`.

        `devices` are the GPUs of all ranks, by their names in CUDA_VISIBLE_DEVICES; none on a CPU.
        `launcher` starts ranks elsewhere than here; with `storage` they need see no files of ours.

        Raises:
            ConfigError: They are too few for all updates at once.
        """
        super().__init__(
            base_model, checkpoints_directory, config, threads=threads, storage=storage
        )
        own = [devices_of(slot, config, devices) for slot in range(config.updates_at_once)]
        self._launcher = launcher or Torchrun(config.deepspeed.ranks, own)
        self._free: SimpleQueue[int] = SimpleQueue()
        for slot in range(config.updates_at_once):
            self._free.put(slot)
        self._ranks: dict[int, Ranks] = {}

    def close(self) -> None:
        """End the ranks."""
        while self._ranks:
            self._ranks.popitem()[1].close()

    def logprobs(
        self, policy: PolicyVersion, actions: Sequence[ScoredAction]
    ) -> tuple[tuple[float, ...], ...]:
        """Read the log-probabilities of each action's tokens under `policy`; shapes (N, T)."""
        if not actions:
            return ()
        return self._reply(policy, actions=tuple(actions)).logprobs

    def _compute(self, job: UpdateJob) -> UpdateResult:
        result = self._reply(job.policy, update=job).update
        assert result is not None, "ranks that were given an update reply with its result"
        return result

    def _share(self, storage: Storage, directory: Path) -> None:
        """Have a copy of what the ranks have stored: for the registry, and a run that goes on."""
        storage.fetch(directory, directory)

    def _reply(
        self,
        policy: PolicyVersion,
        *,
        update: UpdateJob | None = None,
        actions: tuple[ScoredAction, ...] = (),
    ) -> RankReply:
        task = RankTask(
            base_model=str(self._base),
            policy=policy,
            learner=self._config,
            update=update,
            actions=actions,
            storage=self._storage,
        )
        self._directory.mkdir(parents=True, exist_ok=True)
        with written_task(self._directory, task) as file, self._borrowed() as ranks:
            reply = ranks.reply_to(file)
            if reply.error is not None:
                raise DiskFull(reply.error) if reply.disk_full else LearnerError(reply.error)
        return reply

    @contextmanager
    def _borrowed(self) -> Generator[Ranks]:
        """Give ranks that nothing else uses; where the block fails they are ended."""
        slot = self._free.get()
        try:
            ranks = self._ranks.get(slot)
            if ranks is None or not ranks.alive:
                self._end(slot)
                ranks = self._ranks[slot] = self._started(slot)
            yield ranks
        except BaseException:
            self._end(slot)
            raise
        finally:
            self._free.put(slot)

    def _started(self, slot: int) -> Ranks:
        config, cores = self._config.deepspeed, len(os.sched_getaffinity(0))
        shared = max(1, cores // (config.ranks * self._config.updates_at_once))
        return Ranks(
            config,
            self._directory,
            self._directory / "deepspeed.log",
            threads=self._threads or shared,
            launcher=self._launcher,
            slot=slot,
        )

    def _end(self, slot: int) -> None:
        ranks = self._ranks.pop(slot, None)
        if ranks is not None:
            ranks.close()


def devices_of(slot: int, config: LearnerConfig, devices: Sequence[str]) -> tuple[str, ...]:
    """Choose the GPUs of the ranks that do the `slot`-th of all updates at once, from 0.

    Raises:
        ConfigError: They are too few.
    """
    ranks, at_once = config.deepspeed.ranks, config.updates_at_once
    if not devices:
        return ()
    if ranks * at_once > len(devices):
        raise ConfigError(
            f"learner.updates_at_once={at_once} with learner.deepspeed.ranks={ranks} needs "
            f"{ranks * at_once} GPUs, and the learner has {len(devices)}: lower one of them"
        )
    return tuple(devices[slot * ranks : (slot + 1) * ranks])
