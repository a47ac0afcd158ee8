"""An episode as an MLflow trace: what the UI shows is what SQL says.

    trace `tr-<episode id>`                 tags: run, phase, iteration, task type, outcome
      └─ episode                            AGENT span
           ├─ problem_solver                LLM span ── feedback `coach_score` with rationale
           ├─ code_executor                 LLM span ── feedback ...
           │    └─ sandbox                  TOOL span
           └─ verifier                      LLM span ── feedback ...

Ids are made of the store's ids and everything is written at once and in order, past MLflow's
queues, which drop what they cannot take. So a repeat changes nothing and a count can be trusted.
"""

import json
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode, StopReason, Turn
from mappa_core.core.records.scores import CoachScore, ScoreEntry
from mappa_core.core.records.tools import Json, ToolResult

if TYPE_CHECKING:
    from mlflow.entities import Assessment, Span, TraceInfo

PREVIEW_CHARACTERS = 1000
NANOSECONDS = 1_000_000_000
COACH_FEEDBACK = "coach_score"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """One span: what it shows, and when that was, in nanoseconds of the epoch."""

    id: str
    parent: str = ""
    name: str
    kind: str
    inputs: Json
    outputs: Json
    start: int
    end: int


def trace_id(episode_id: UUID) -> str:
    """The trace of an episode."""
    return f"tr-{episode_id.hex}"


def span_id(*parts: ids.Part) -> str:
    """A span's id: 16 hexadecimal digits, a function of what it shows."""
    return ids.content_id("span", *parts).hex[:16]


def trace_info(
    episode: Episode, entries: Sequence[ScoreEntry], experiment_id: str, mlflow_run_id: str
) -> "TraceInfo":
    """The head of an episode's trace, with every score of its actions."""
    from mlflow.entities import TraceInfo, TraceLocation, TraceState

    start, end = _episode_times(episode)
    failed = episode.stop_reason is StopReason.FAILED
    outcome = episode.outcome
    last_words = episode.turns[-1].action.text if episode.turns else ""
    return TraceInfo(
        trace_id=trace_id(episode.id),
        trace_location=TraceLocation.from_experiment_id(experiment_id),
        request_time=start // 1_000_000,
        execution_duration=(end - start) // 1_000_000,
        state=TraceState.ERROR if failed else TraceState.OK,
        request_preview=_unicode(episode.problem.statement)[:PREVIEW_CHARACTERS],
        response_preview=_unicode(last_words)[:PREVIEW_CHARACTERS],
        trace_metadata={"mlflow.sourceRun": mlflow_run_id},
        tags={
            "mlflow.traceName": f"{episode.problem.task_type} {episode.phase} {episode.iteration}",
            "mappa.run_id": str(episode.run_id),
            "mappa.episode_id": str(episode.id),
            "mappa.phase": episode.phase,
            "mappa.iteration": str(episode.iteration),
            "mappa.task_type": episode.problem.task_type,
            "mappa.success": "" if outcome is None else str(outcome.success).lower(),
        },
        assessments=[_feedback(episode, entry) for entry in entries],
    )


def spans(episode: Episode) -> "Iterator[Span]":
    """The episode, its actions and what their code did, as spans."""
    return (_span(episode, shown) for shown in _shown(episode))


def _shown(episode: Episode) -> Iterator[_Shown]:
    start, end = _episode_times(episode)
    yield _Shown(
        id=span_id(episode.id),
        name="episode",
        kind="AGENT",
        inputs={"problem": episode.problem.statement},
        outputs={"answer": episode.outcome and episode.outcome.answer},
        start=start,
        end=end,
    )
    for turn in episode.turns:
        action = _shown_action(episode, turn)
        yield action
        if turn.tool_result is not None:
            yield _shown_tool(episode, turn, turn.tool_result, began=action.end)


def _shown_action(episode: Episode, turn: Turn) -> _Shown:
    start, end = _action_times(turn)
    messages: list[Json] = [
        {"role": each.role, "content": each.content} for each in turn.observation.messages
    ]
    reason = turn.action.finish_reason.value
    return _Shown(
        id=span_id(ids.action_id(episode.id, turn.index)),
        parent=span_id(episode.id),
        name=turn.agent,
        kind="LLM",
        inputs={"messages": messages},
        outputs={"text": turn.action.text, "finish_reason": reason},
        start=start,
        end=end,
    )


def _shown_tool(episode: Episode, turn: Turn, result: ToolResult, *, began: int) -> _Shown:
    action = ids.action_id(episode.id, turn.index)
    return _Shown(
        id=span_id(action, "sandbox"),
        parent=span_id(action),
        name="sandbox",
        kind="TOOL",
        inputs={"code": result.code},
        outputs={
            "status": result.status.value,
            "exit_code": result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
        },
        start=began,
        end=began + int(result.seconds * NANOSECONDS),
    )


def _span(episode: Episode, shown: _Shown) -> "Span":
    from mlflow.entities import Span

    attributes: dict[str, Json] = {
        "mlflow.traceRequestId": trace_id(episode.id),
        "mlflow.spanType": shown.kind,
        "mlflow.spanInputs": shown.inputs,
        "mlflow.spanOutputs": shown.outputs,
    }
    return Span.from_dict(
        {
            "trace_id": _base64(episode.id.hex),
            "span_id": _base64(shown.id),
            "parent_span_id": _base64(shown.parent),
            "name": shown.name,
            "start_time_unix_nano": shown.start,
            "end_time_unix_nano": shown.end,
            "status": {"code": "STATUS_CODE_OK"},
            "attributes": {key: _json(value) for key, value in attributes.items()},
            "events": [],
        }
    )


def _feedback(episode: Episode, entry: ScoreEntry) -> "Assessment":
    from mlflow.entities import AssessmentError, AssessmentSource, Feedback

    score = entry.score
    scored = isinstance(score, CoachScore)
    feedback = Feedback(
        name=COACH_FEEDBACK,
        value=score.value if scored else None,
        error=None if scored else AssessmentError(score.reason, _unicode(score.detail)),
        rationale=_unicode(score.rationale) if scored else None,
        source=AssessmentSource("LLM_JUDGE", f"{entry.identity.coach}/{entry.identity.model}"),
        trace_id=trace_id(episode.id),
        span_id=span_id(entry.action_id),
        metadata={
            "mappa.score_id": str(entry.id),
            "mappa.rubric_version": entry.identity.rubric_version,
            "mappa.trained": str(entry.trained).lower(),
        },
    )
    feedback.assessment_id = f"a-{entry.id.hex}"
    return feedback


def _episode_times(episode: Episode) -> tuple[int, int]:
    if not episode.turns:
        return 0, 0
    last = episode.turns[-1]
    tool_seconds = last.tool_result.seconds if last.tool_result else 0.0
    end = _action_times(last)[1] + int(tool_seconds * NANOSECONDS)
    return _action_times(episode.turns[0])[0], end


def _action_times(turn: Turn) -> tuple[int, int]:
    start = int(turn.action.started_at.timestamp() * 1_000_000) * 1000
    return start, start + int(turn.action.seconds * NANOSECONDS)


def _base64(digits: str) -> str:
    """Hexadecimal digits as OpenTelemetry's JSON has ids."""
    return b64encode(bytes.fromhex(digits)).decode()


def _json(value: Json) -> str:
    """JSON without the escapes that stand for what no database takes."""
    return json.dumps(json.loads(_unicode(json.dumps(value, ensure_ascii=False))))


def _unicode(text: str) -> str:
    """`text` with NUL and lone surrogates replaced."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\N{SYMBOL FOR NULL}")
