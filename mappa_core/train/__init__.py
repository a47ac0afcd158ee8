"""Turns scored actions into new weights.

update             an agent's stored scores ─▶ a stored update; the next five are on its way
├ credit           scores ─▶ what each action is worth, by one of `estimators`
├ batches          samples ─▶ micro-batches, each a `prefix_tree`
├ learners/        a model reads the tree: `tree_attention`, `token_logprobs`;
│                    what a node attends to is planned in `tree_plans`
├ clipped_objective  ratio, clip, KL pull; `mismatch` corrects for the sampler
└ metrics          what it looked like, and whether the guard takes it
checkpoints, retention, forking    weights on disk: written, removed, gone on from
certificate        estimators against the exact gradients of `toy_teams`, for `mappa bench`
memory_plan        what lies where on each GPU; the learner's part is `learner_memory`
"""
