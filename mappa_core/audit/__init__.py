"""Is the coach biased, since when, and what did it do to the policy? Numerics on arrays only.

Frame ─▶ effects ─▶ verdicts        after training, clusters are problems
anchors, stream ─▶ drift            during training, valid at every look
simulate ─▶ selftest                how often the audit itself is wrong
"""
