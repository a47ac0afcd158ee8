"""What every learner computes with: the model on a prefix tree, one step, its figures, files."""
