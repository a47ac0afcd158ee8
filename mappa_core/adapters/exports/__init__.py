"""Trajectories as files that `datasets` and TRL read."""
