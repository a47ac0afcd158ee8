"""MAPPA: teams of language-model agents trained from per-action process rewards.

One folder for each thing MAPPA does; upper ones may import lower ones, never the other way:

    app
    evaluate | audit
    rollout | coach | train
    models | store | tracking | grading
    core
"""
