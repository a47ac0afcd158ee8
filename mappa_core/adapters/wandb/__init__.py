"""Weights & Biases beside MLflow."""
