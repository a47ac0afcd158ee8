"""Prefect flows and the command line: order, retries, limits, schedules, and nothing else."""
