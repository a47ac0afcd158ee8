"""Updates by DeepSpeed's ZeRO on ranks of their own: one GPU each, or processes on a CPU."""
