"""Updates by DeepSpeed's ZeRO on ranks of their own: one GPU each, or processes on a CPU."""

from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner

__all__ = ["DeepspeedLearner"]
