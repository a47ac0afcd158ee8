"""Engines sample actions from the agents' weights."""
