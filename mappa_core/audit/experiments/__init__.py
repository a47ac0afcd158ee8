"""Experiments on stored actions."""
