"""A stand-in for coach providers on this machine: their wire formats, scripted answers, faults.

Demonstrations and benches without a network, and tests, point a real client at it. Scores come
from the prompt's hash, so an undisturbed and a disturbed run get the same ones.
"""
