"""Scoring actions: evidence, rubrics, rules, providers, budget."""
