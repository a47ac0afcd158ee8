"""Records to rows and back: runs, policies, scores and updates (episodes: `episode_mapping`).

`*_row` makes what is inserted, `to_*` reads what was selected, and a round trip changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import RowMapping

from mappa_core.core import ids
from mappa_core.core.records.episodes import PolicyVersion, Problem
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import (
    CoachCall,
    CoachIdentity,
    CoachRequest,
    CoachScore,
    CriterionMark,
    LabelVisibility,
    ScoreEntry,
    Unscored,
)
from mappa_core.core.records.updates import Checkpoint, Update, UpdateEntry

Values: TypeAlias = dict[str, object]
"""Column names and what goes in; it never leaves the adapter."""
Row: TypeAlias = RowMapping | Mapping[str, Any]
"""Column names and what came out."""


def run_row(run: Run) -> Values:
    """The row of `run`."""
    return {
        "id": run.id,
        "name": run.name,
        "team": run.team,
        "config": dict(run.config),
        "code_version": run.code_version,
        "seed": run.seed,
        "sandbox_tier": run.sandbox_tier,
        "started_at": run.started_at,
        "status": run.status.value,
        "ended_at": run.ended_at,
        "error": run.error,
        "prefect_flow_run_id": run.prefect_flow_run_id,
        "mlflow_run_id": run.mlflow_run_id,
    }


def to_run(row: Row) -> Run:
    """The run of one row of `run`."""
    fields: dict[str, Any] = {**row, "status": RunStatus(row["status"])}
    return Run(**fields)


def manifest_rows(run_id: UUID, split: str, problems: Sequence[Problem]) -> list[Values]:
    """One row for each problem that a run draws from, in order."""
    return [
        {"run_id": run_id, "split": split, "position": position, "problem_id": problem.id}
        for position, problem in enumerate(problems)
    ]


def policy_row(policy: PolicyVersion) -> Values:
    """The row of `policy`."""
    return {
        "id": policy.id,
        "run_id": policy.run_id,
        "agent": policy.agent,
        "step": policy.step,
        "base_model": policy.base_model,
        "adapter_uri": policy.adapter_uri,
    }


def to_policy(row: Row) -> PolicyVersion:
    """The policy version of one row of `policy_version`."""
    return PolicyVersion(**row)


def coach_row(identity: CoachIdentity) -> Values:
    """The row of who scores with what."""
    return {
        "id": coach_id(identity),
        "coach": identity.coach,
        "model": identity.model,
        "model_version": identity.model_version,
        "rubric_version": identity.rubric_version,
        "rubric_sha256": identity.rubric_sha256,
    }


@cache
def coach_id(identity: CoachIdentity) -> UUID:
    """The id of who scores with what."""
    return ids.content_id("coach", *astuple(identity))


def score_row(entry: ScoreEntry) -> Values:
    """The row of one score, or of the reason there is none."""
    values: Values = {
        "id": entry.id,
        "action_id": entry.action_id,
        "coach_id": coach_id(entry.identity),
        "repeat_index": entry.repeat_index,
        "label_visible": entry.label_visible,
        "trained": entry.trained,
        "visibility": entry.visibility.value,
    }
    return values | _asked_row(entry.score) | _judgement(entry.score)


def _asked_row(asked: CoachCall) -> Values:
    request = asked.request
    return {
        "seconds": asked.seconds,
        "raw_reply": asked.raw_reply,
        "prompt_tokens": asked.prompt_tokens,
        "reply_tokens": asked.reply_tokens,
        "cached_tokens": asked.cached_tokens,
        "thought_tokens": asked.thought_tokens,
        "cost_usd": asked.cost_usd,
        "request": request
        and {
            "system": request.system,
            "prompt": request.prompt,
            "settings": dict(request.settings),
        },
        "answered_version": asked.model_version,
        "attempts": asked.attempts,
        "flags": list(asked.flags),
    }


def _judgement(score: CoachScore | Unscored) -> Values:
    scored = score if isinstance(score, CoachScore) else None
    unscored = score if isinstance(score, Unscored) else None
    return {
        "score": scored and scored.value,
        "rationale": scored and scored.rationale,
        "criteria": scored and [{"name": m.name, "mark": m.mark} for m in scored.criteria],
        "blamed": scored and scored.blamed,
        "correction": scored and scored.correction,
        "unscored_reason": unscored and unscored.reason,
        "unscored_detail": unscored and unscored.detail,
    }


def to_score(row: Row) -> ScoreEntry:
    """The score of one row of `coach_score` joined to `coach`."""
    return ScoreEntry(
        id=row["id"],
        action_id=row["action_id"],
        identity=CoachIdentity(
            coach=row["coach"],
            model=row["model"],
            model_version=row["model_version"],
            rubric_version=row["rubric_version"],
            rubric_sha256=row["rubric_sha256"],
        ),
        repeat_index=row["repeat_index"],
        label_visible=row["label_visible"],
        trained=row["trained"],
        visibility=LabelVisibility(row["visibility"]),
        score=_to_coach_score(row) if row["score"] is not None else _to_unscored(row),
    )


def _to_coach_score(row: Row) -> CoachScore:
    marks = [CriterionMark(name=m["name"], mark=float(m["mark"])) for m in row["criteria"] or ()]
    return CoachScore(
        value=row["score"],
        rationale=row["rationale"],
        criteria=tuple(marks),
        blamed=row["blamed"],
        correction=row["correction"],
        **_to_asked(row),
    )


def _to_unscored(row: Row) -> Unscored:
    return Unscored(reason=row["unscored_reason"], detail=row["unscored_detail"], **_to_asked(row))


def _to_asked(row: Row) -> dict[str, Any]:
    """The fields of `CoachCall`."""
    same = ("seconds", "raw_reply", "prompt_tokens", "reply_tokens", "cost_usd")
    return {
        **{name: row[name] for name in (*same, "cached_tokens", "thought_tokens", "attempts")},
        "request": CoachRequest(**row["request"]) if row["request"] else None,
        "model_version": row["answered_version"],
        "flags": tuple(row["flags"] or ()),
    }


def update_row(update: Update) -> Values:
    """The row of `update`, without its entries."""
    return {
        "id": update.id,
        "run_id": update.run_id,
        "agent": update.agent,
        "iteration": update.iteration,
        "from_policy_id": update.from_policy_id,
        "to_policy_id": update.to_policy_id,
        "metrics": dict(update.metrics),
        "seconds": update.seconds,
        "skipped": update.skipped,
    }


def update_action_rows(update: Update) -> list[Values]:
    """One row per entry, in order."""
    return [
        {
            "update_id": update.id,
            "position": position,
            "action_id": entry.action_id,
            "score_id": entry.score_id,
            "advantage": entry.advantage,
            "weight": entry.weight,
            "left_out": entry.left_out,
        }
        for position, entry in enumerate(update.entries)
    ]


def to_update(row: Row, entries: Iterable[Row]) -> Update:
    """The update of one row of `update` and its rows of `update_action`, in order."""
    return Update(
        id=row["id"],
        run_id=row["run_id"],
        agent=row["agent"],
        iteration=row["iteration"],
        from_policy_id=row["from_policy_id"],
        to_policy_id=row["to_policy_id"],
        # A whole number comes back from JSON as an int, and NaN as its name.
        metrics={name: float(value) for name, value in row["metrics"].items()},
        entries=tuple(to_update_entry(entry) for entry in entries),
        seconds=row["seconds"],
        skipped=row["skipped"],
    )


def to_update_entry(row: Row) -> UpdateEntry:
    """The entry of one row of `update_action`."""
    return UpdateEntry(
        action_id=row["action_id"],
        score_id=row["score_id"],
        advantage=row["advantage"],
        weight=row["weight"],
        left_out=row["left_out"],
    )


def checkpoint_row(checkpoint: Checkpoint) -> Values:
    """The row of `checkpoint`."""
    return {
        "id": checkpoint.id,
        "policy_version_id": checkpoint.policy_version_id,
        "directory": checkpoint.directory,
        "sha256": checkpoint.sha256,
        "size_bytes": checkpoint.size_bytes,
    }


def to_checkpoint(row: Row) -> Checkpoint:
    """The checkpoint of one row of `checkpoint`."""
    return Checkpoint(
        id=row["id"],
        policy_version_id=row["policy_version_id"],
        directory=row["directory"],
        sha256=row["sha256"],
        size_bytes=row["size_bytes"],
    )
