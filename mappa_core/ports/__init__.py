"""Every seam of the system on one page: what MAPPA needs from outside, and what may go wrong.

Each port has at least one real adapter in `adapters/` and, where tests need one, a fake in
`tests/fakes/` held to the same contract tests. `bootstrap` is the only place that chooses.
"""

from mappa_core.ports.acting import (
    Engine,
    ProblemSource,
    Sandbox,
    SleepingEngine,
    TaskSource,
    Tokenizer,
    Toolbox,
    Workspaces,
)
from mappa_core.ports.judging import BudgetedCoach, Coach
from mappa_core.ports.keeping import AuditStore, Store
from mappa_core.ports.learning import Learner, RetiringLearner
from mappa_core.ports.tracking import Curves, ModelRegistry, Tracker, Watcher

__all__ = [
    "AuditStore",
    "BudgetedCoach",
    "Coach",
    "Curves",
    "Engine",
    "Learner",
    "ModelRegistry",
    "ProblemSource",
    "RetiringLearner",
    "Sandbox",
    "SleepingEngine",
    "Store",
    "TaskSource",
    "Tokenizer",
    "Toolbox",
    "Tracker",
    "Watcher",
    "Workspaces",
]
