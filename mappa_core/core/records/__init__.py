"""The values that flow through MAPPA, one way.

    Problem ─▶ Episode ─▶ Observation ─▶ Action ─▶ ToolResult ─▶ Turn
                                            └─▶ CoachScore | Unscored
    Turn + score ─▶ ScoredAction ─▶ TrainingSample ─▶ UpdateReport ─▶ Checkpoint ─▶ PolicyVersion

Dimension letters, used everywhere: P problems, G episodes per problem, A agents, N actions,
T tokens, B batch, V vocabulary. Log-probabilities are natural logarithms under the distribution
that the token was drawn from: softmax(logits / temperature), at temperature 0 softmax(logits).

Identity is a function of content (see `ids`), so writing the same thing twice is harmless.
"""
