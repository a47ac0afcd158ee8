"""Updates of LoRA weights with torch, in this process."""

from mappa_core.adapters.torch_learner.learner import TorchLearner

__all__ = ["TorchLearner"]
