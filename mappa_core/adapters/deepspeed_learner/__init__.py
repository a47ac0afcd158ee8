"""Updates by DeepSpeed's ZeRO on ranks of their own: one GPU each, or processes on a CPU."""

from mappa_core.adapters.deepspeed_learner.learner import DeepspeedLearner

__all__ = ["DeepspeedLearner"]
