"""Corrections of a coach's bias: stored from an audit, and taken off the scores of an update."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from mappa_core.audit.records import CorrectedScore, Correction
from mappa_core.audit.run_audit import RunAudit
from mappa_core.audit.statistics.debias import (
    corrected,
    correction,
    experiment_terms,
)
from mappa_core.audit.store import AuditStore
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.scores import ScoredAction


def store_correction(store: AuditStore, audited: RunAudit) -> Correction:
    """Store and return the correction that an audit's experiment supports.

    Raises:
        ConfigError: No experiment found a task type's name to be worth points.
    """
    effects = audited.result.experiment
    if not any(each.verdict == "biased" for each in effects if each.types is not None):
        raise ConfigError(
            "a correction takes an experiment that finds a task type favoured, for what a "
            f"regression finds may be deserved: `mappa audit {audited.seen.run.name} "
            "--experiment 200 --debias`"
        )
    terms = experiment_terms(effects)
    run, frame = audited.seen.run, audited.seen.frame
    coach, rubric_sha256 = store.trainer(run.id)
    made = correction(
        terms,
        run_id=run.id,
        iteration=int(frame.iteration.max()),
        coach=coach,
        rubric_sha256=rubric_sha256,
    )
    store.add([made])
    return made


def corrected_actions(
    correction: Correction,
    run_id: UUID,
    iteration: int,
    actions: Sequence[ScoredAction],
    *,
    audit: AuditStore,
) -> tuple[ScoredAction, ...]:
    """The actions with the correction taken off their scores; raw and corrected are stored.

    Unscored actions stay unscored.
    """
    rows, frame = audit.frame_with_ids(run_id, iteration)
    new = dict(zip(rows, corrected(correction, frame), strict=True))
    found = [
        action if action.score is None else replace(action, score=float(new[action.action_id]))
        for action in actions
    ]
    audit.add(
        [
            CorrectedScore(
                score_id=raw.score_id,
                correction_id=correction.id,
                raw=raw.score,
                corrected=after.score,
            )
            for raw, after in zip(actions, found, strict=True)
            if raw.score_id is not None and raw.score is not None and after.score is not None
        ]
    )
    return tuple(found)
