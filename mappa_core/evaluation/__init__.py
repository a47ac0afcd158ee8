"""Measurement: is an answer right, and did the policies get better; pure."""
