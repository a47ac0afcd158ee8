"""Learners and what they share: the model on a prefix tree, one step, its figures, files."""

from pathlib import Path

from mappa_core.core.errors import ConfigError
from mappa_core.train.config import LearnerConfig
from mappa_core.train.protocols import Learner


def open_learner(config: LearnerConfig, model: str, checkpoints: Path) -> Learner:
    """Open the learner as configured, with the base model in memory.

    Raises:
        ConfigError: A package it needs is missing.
    """
    if config.backend == "deepspeed":
        try:
            from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner
        except ImportError as error:
            raise ConfigError(
                f"learner.backend=deepspeed needs the package {error.name}: install "
                "requirements/gpu.lock, or set learner.backend=torch"
            ) from error
        return DeepspeedLearner(model, checkpoints, config)
    from mappa_core.train.learners.torch_learner import TorchLearner

    return TorchLearner(model, checkpoints, config)
