"""Learners and what they share: the model on a prefix tree, one step, its figures, files."""
