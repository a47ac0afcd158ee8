"""Metrics, traces and registered models: MLflow, TensorBoard, Weights & Biases."""
