"""Watching the coach of a run while it trains."""
