"""Plain transformers as an engine: in process, slow, exact."""
