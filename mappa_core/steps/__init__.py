"""The body of each Prefect task: ports in, values out.

    play_episode   Episode ─▶ Episode with turns, closed          Engine, Tokenizer, Sandbox, Store
    update_agent   run, agent, iteration ─▶ Update                Learner, Store
    register       Update ─▶ model version                        ModelRegistry, Store
    trace_episode  Episode, ScoreEntry per action ─▶ trace        Tracker
    (scores: `scoring`; the watch on the coach: `auditing`; champions: `promoting`)

Every step looks in the store first and returns what is already there, so a step may be
repeated, by a retry or after a crash, and only what is missing is done.
"""

from mappa_core.steps.executing import Desk, Workbench, execute, limits_of
from mappa_core.steps.forking import (
    adopt,
    check_fork,
    check_resumable,
    check_same_weights,
    check_trains,
    newest_whole_step,
)
from mappa_core.steps.playing import (
    Execute,
    Generate,
    Judge,
    check_enough,
    duties_of,
    generate,
    generation_seed,
    is_traced,
    judge_answer,
    judge_submission,
    new_episode,
    play_episode,
    problems_of_iteration,
    sampling_of,
    trace_episode,
)
from mappa_core.steps.reporting import iteration_metrics, iteration_table
from mappa_core.steps.updating import (
    Correct,
    UpdateRequest,
    base_policy,
    check_visible,
    policy_at,
    register_policies,
    registered_name,
    retire_checkpoints,
    superseded,
    update_agent,
)

__all__ = [
    "Correct",
    "Desk",
    "Execute",
    "Generate",
    "Judge",
    "UpdateRequest",
    "Workbench",
    "adopt",
    "base_policy",
    "check_enough",
    "check_fork",
    "check_resumable",
    "check_same_weights",
    "check_trains",
    "check_visible",
    "duties_of",
    "execute",
    "generate",
    "generation_seed",
    "is_traced",
    "iteration_metrics",
    "iteration_table",
    "judge_answer",
    "judge_submission",
    "limits_of",
    "new_episode",
    "newest_whole_step",
    "play_episode",
    "policy_at",
    "problems_of_iteration",
    "register_policies",
    "registered_name",
    "retire_checkpoints",
    "sampling_of",
    "superseded",
    "trace_episode",
    "update_agent",
]
