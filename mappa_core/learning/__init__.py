"""The numerics of learning: pure functions on tensors, each with its paper and formula."""
