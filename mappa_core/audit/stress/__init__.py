"""Worlds that the audit did not make, and how often it is wrong in them."""
