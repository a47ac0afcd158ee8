"""From scores to new weights: credit, estimators, objective, learners, the update."""
