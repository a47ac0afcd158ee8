"""Learners and what they share: the model on a prefix tree, one step, its figures, files."""

from contextlib import AsyncExitStack, ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.cluster.storage import Storage
from mappa_core.core.errors import ConfigError
from mappa_core.train.config import LearnerConfig
from mappa_core.train.protocols import Learner

if TYPE_CHECKING:
    from mappa_core.train.learners.deepspeed.launch import Launcher


def open_learner(
    config: LearnerConfig,
    model: str,
    checkpoints: Path,
    stack: ExitStack | AsyncExitStack,
    *,
    gpus: tuple[str, ...],
    launcher: "Launcher | None" = None,
    storage: Storage | None = None,
) -> Learner:
    """Open the learner as configured; what it starts ends with `stack`.

    The torch learner has the base model in memory then, DeepSpeed's ranks start with the first
    update, on `gpus` by their names in CUDA_VISIBLE_DEVICES, or where `launcher` starts them.
    `storage` has checkpoints for other machines.

    Raises:
        ConfigError: A package it needs is missing.
    """
    if config.backend == "deepspeed":
        # Only its ranks import it.
        if find_spec("deepspeed") is None:
            raise ConfigError(
                "learner.backend=deepspeed needs the package deepspeed: install "
                "requirements/gpu.lock, or set learner.backend=torch"
            )
        from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner

        learner = DeepspeedLearner(
            model, checkpoints, config, devices=gpus, launcher=launcher, storage=storage
        )
        stack.callback(learner.close)
        return learner
    from mappa_core.train.learners.torch_learner import TorchLearner

    return TorchLearner(model, checkpoints, config, storage=storage)
