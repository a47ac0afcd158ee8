"""MAPPA: teams of language-model agents trained from per-action process rewards.

The rooms, from the floor up; upper ones may import lower ones, never the other way:

    domain -> config -> teams | coaching | learning | evaluation -> ports
           -> adapters | steps -> settings -> bootstrap -> (flows)
"""
