"""Episodes to rows and back: problems, turns, actions, tool results, artifacts and outcomes."""

from array import array
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from mappa_core.core import ids
from mappa_core.core.records.episodes import (
    Action,
    Episode,
    FinishReason,
    Message,
    Observation,
    Outcome,
    Problem,
    StopReason,
    Turn,
)
from mappa_core.core.records.scores import ScoredAction
from mappa_core.core.records.tools import Artifact, Json, RejectedFile, ToolResult, ToolStatus
from mappa_core.store.mapping import Row, Values


def problem_row(problem: Problem) -> Values:
    """The row of `problem`."""
    return {
        "id": problem.id,
        "dataset": problem.dataset,
        "task_type": problem.task_type,
        "level": problem.level,
        "statement": problem.statement,
        "answer": problem.answer,
    }


def to_problem(row: Row) -> Problem:
    """The problem of one row of `problem`."""
    return Problem(**row)


def episode_row(episode: Episode) -> Values:
    """The row of an episode that begins: its turns and its end have rows of their own."""
    return {
        "id": episode.id,
        "run_id": episode.run_id,
        "phase": episode.phase,
        "iteration": episode.iteration,
        "problem_id": episode.problem.id,
        "rollout_index": episode.rollout_index,
    }


def finished_episode_row(episode: Episode) -> Values:
    """The row of an episode that is over; it began and ended with its actions."""
    actions = [turn.action for turn in episode.turns]
    ends = [action.started_at + timedelta(seconds=action.seconds) for action in actions]
    return episode_row(episode) | {
        "opened_at": min((action.started_at for action in actions), default=datetime.now(UTC)),
        "closed_at": max(ends, default=datetime.now(UTC)),
        "stop_reason": None if episode.stop_reason is None else episode.stop_reason.value,
        "error": episode.error,
    }


def to_episode(row: Row, problem: Problem, turns: Iterable[Turn], outcome: Row | None) -> Episode:
    """The episode of one row of `episode` and what belongs to it."""
    return Episode(
        id=row["id"],
        run_id=row["run_id"],
        phase=row["phase"],
        iteration=row["iteration"],
        problem=problem,
        rollout_index=row["rollout_index"],
        turns=tuple(turns),
        stop_reason=None if row["stop_reason"] is None else StopReason(row["stop_reason"]),
        error=row["error"],
        outcome=None if outcome is None else to_outcome(outcome),
    )


def outcome_row(episode: Episode, outcome: Outcome) -> Values:
    """The row of an episode's `outcome`."""
    return {
        "episode_id": episode.id,
        "success": outcome.success,
        "answer": outcome.answer,
        "method": outcome.method,
        "metric": outcome.metric,
        "value": outcome.value,
        "charged": outcome.charged,
        "skill": outcome.skill,
        "detail": outcome.detail,
    }


def to_outcome(row: Row) -> Outcome:
    """The outcome of one row of `outcome`."""
    fields = {name: value for name, value in row.items() if name != "episode_id"}
    return Outcome(**fields)


def action_row(episode: Episode, turn: Turn) -> Values:
    """The row of a turn's observation and action."""
    action = turn.action
    return {
        "id": ids.action_id(episode.id, turn.index),
        "episode_id": episode.id,
        "turn_index": turn.index,
        "agent": turn.agent,
        "messages": [_message_json(message) for message in turn.observation.messages],
        "prompt_token_ids": list(action.prompt_token_ids),
        "token_ids": list(action.token_ids),
        "logprobs": list(action.logprobs),
        "text": action.text,
        "finish_reason": action.finish_reason.value,
        "policy_version_id": action.policy_version_id,
        "temperature": action.temperature,
        "seed": action.seed,
        "started_at": action.started_at,
        "seconds": action.seconds,
    }


def to_turn(row: Row, tool_result: ToolResult | None) -> Turn:
    """The turn of one row of `action`."""
    return Turn(
        index=row["turn_index"],
        agent=row["agent"],
        observation=Observation(agent=row["agent"], messages=messages(row["messages"])),
        action=Action(
            prompt_token_ids=tuple(row["prompt_token_ids"]),
            token_ids=tuple(row["token_ids"]),
            logprobs=float32(row["logprobs"]),
            text=row["text"],
            finish_reason=FinishReason(row["finish_reason"]),
            policy_version_id=row["policy_version_id"],
            temperature=row["temperature"],
            seed=row["seed"],
            started_at=row["started_at"],
            seconds=row["seconds"],
        ),
        tool_result=tool_result,
    )


def float32(values: Iterable[float]) -> tuple[float, ...]:
    """Postgres prints the shortest decimal of a float32; this is the number it stands for."""
    return tuple(array("f", values))


def _message_json(message: Message) -> Json:
    token_ids = None if message.token_ids is None else cast("list[Json]", list(message.token_ids))
    return {"role": message.role, "content": message.content, "token_ids": token_ids}


def messages(stored: list[dict[str, Any]]) -> tuple[Message, ...]:
    """What an agent saw, from the JSON of its action."""
    return tuple(
        Message(
            role=message["role"],
            content=message["content"],
            token_ids=None if message["token_ids"] is None else tuple(message["token_ids"]),
        )
        for message in stored
    )


def tool_result_row(episode: Episode, turn: Turn, result: ToolResult) -> Values:
    """The row of what a turn's code did; its files are rows of `artifact_use`."""
    return {
        "action_id": ids.action_id(episode.id, turn.index),
        "code": result.code,
        "status": result.status.value,
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_omitted_bytes": result.stdout_omitted_bytes,
        "stderr_omitted_bytes": result.stderr_omitted_bytes,
        "seconds": result.seconds,
        "cpu_seconds": result.cpu_seconds,
        "peak_memory_bytes": result.peak_memory_bytes,
        "tier": result.tier,
        "rejected": [{"name": file.name, "reason": file.reason} for file in result.rejected],
        "removed": list(result.removed),
        "reads_known": result.read is not None,
    }


def to_tool_result(row: Row, written: Iterable[Artifact], read: Iterable[Artifact]) -> ToolResult:
    """The tool result of one row of `tool_result` and the files it wrote and read."""
    return ToolResult(
        code=row["code"],
        status=ToolStatus(row["status"]),
        exit_code=row["exit_code"],
        stdout=row["stdout"],
        stderr=row["stderr"],
        stdout_omitted_bytes=row["stdout_omitted_bytes"],
        stderr_omitted_bytes=row["stderr_omitted_bytes"],
        seconds=row["seconds"],
        cpu_seconds=row["cpu_seconds"],
        peak_memory_bytes=row["peak_memory_bytes"],
        tier=row["tier"],
        written=tuple(written),
        read=tuple(read) if row["reads_known"] else None,
        removed=tuple(row["removed"]),
        rejected=tuple(RejectedFile(**file) for file in row["rejected"]),
    )


def artifact_rows(result: ToolResult) -> list[Values]:
    """One row per content, however many names it has."""
    files = (*result.written, *(result.read or ()))
    sizes = {file.sha256: file.size_bytes for file in files}
    return [{"sha256": sha256, "size_bytes": size} for sha256, size in sizes.items()]


def artifact_use_rows(episode: Episode, turn: Turn, result: ToolResult) -> list[Values]:
    """One row per file the turn wrote, then per file it read, in order."""
    action_id = ids.action_id(episode.id, turn.index)
    uses = [("written", file) for file in result.written]
    uses += [("read", file) for file in result.read or ()]
    return [
        {
            "action_id": action_id,
            "position": position,
            "use": use,
            "name": file.name,
            "sha256": file.sha256,
        }
        for position, (use, file) in enumerate(uses)
    ]


def to_artifact(row: Row) -> Artifact:
    """The artifact of one row of `artifact_use` joined to `artifact`."""
    return Artifact(name=row["name"], size_bytes=row["size_bytes"], sha256=row["sha256"])


def to_scored_action(row: Row) -> ScoredAction:
    """What the learner reads of one action: see `reading.scored_actions` for the columns."""
    return ScoredAction(
        action_id=row["id"],
        episode_id=row["episode_id"],
        problem_id=row["problem_id"],
        rollout_index=row["rollout_index"],
        turn_index=row["turn_index"],
        policy_step=row["policy_step"],
        prompt_token_ids=tuple(row["prompt_token_ids"]),
        token_ids=tuple(row["token_ids"]),
        logprobs=float32(row["logprobs"]),
        truncated=row["finish_reason"] == FinishReason.LENGTH.value,
        score=row["score"],
    )
