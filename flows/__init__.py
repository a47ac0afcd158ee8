"""Prefect flows and the command line: order, retries, limits, schedules, and nothing else."""

import os

from mappa_core.core.heap import hide_tunables, share_heap

# With more runnable threads than cores, OpenMP threads that spin at barriers burn most of the CPU
# (measured: 5 times the wall time of a matrix product beside three busy engines). OpenMP reads
# this when torch is first imported, which nothing has done before this package.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# The bars that libraries draw would run through our own progress.
os.environ.setdefault("TQDM_DISABLE", "1")
# Before any thread starts: those that have a heap of their own keep it.
share_heap()
hide_tunables()
