"""Judging actions from their evidence: reading a story's words, rules per role; pure."""
