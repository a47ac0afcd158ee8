"""MLflow: parameters and metrics of runs, and checkpoints as versions of registered models."""
