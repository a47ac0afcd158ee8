"""TensorBoard beside MLflow."""
