"""Has coach, rubric or policy drifted, since when, for which task types, and what may be behind it?

anchors and stream of a run, its model's changes ─▶ DriftState ─▶ figures, words
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mappa_core.audit import drift_sql
from mappa_core.audit.frame import Floats
from mappa_core.audit.records import Figure
from mappa_core.audit.statistics import drift
from mappa_core.audit.statistics.anchor_drift import (
    AnchorBets,
    bet_on_anchors,
    held_still,
    step,
)
from mappa_core.audit.watch.anchors import AnchorHistory
from mappa_core.audit.watch.history import ScoreStream
from mappa_core.audit.watch.versions import ModelChange

DRIFT_KINDS = ("drift", "model_change")
"""Of the figures."""
BY_STREAM: tuple[drift.Cause, ...] = ("policy", "coach or policy", "policy or order")
"""Causes that the scores of what the policies did say, not the anchors."""
BY_MODEL: tuple[drift.Cause, ...] = ("coach", "coach or policy")
"""Causes that a change of the coach's model could be behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftState:
    """The drift test's state after the latest iteration."""

    cause: drift.Cause
    anchors: AnchorBets
    stream: drift.Wealth
    since: int | None
    """The iteration the drift set in; None where there is none."""
    earliest: int | None
    latest: int | None
    """Of the iterations it could have set in at, at 95 %."""
    iterations: tuple[int, ...]
    """Of the stream."""
    anchor_iterations: tuple[int, ...]
    changes: tuple[ModelChange, ...]
    """Of the coach's model; each says whether it is likely behind the drift."""

    @property
    def by_stream(self) -> bool:
        """Whether the scores of what the policies did say it, not the anchors."""
        return self.cause in BY_STREAM

    @property
    def task_types(self) -> tuple[str, ...]:
        """Those that the coach is shown to score otherwise; empty where that cannot be said."""
        return self.anchors.named if self.cause in ("coach", "rubric") else ()

    @property
    def says(self) -> str:
        """What drifted, in words; a change of the coach's model that is stored is named."""
        types = f" for {' and '.join(self.task_types)}" if self.task_types else ""
        parts = [f"the {self._what} since iteration {self.since}{self._could_be}{types}"]
        moved = self.anchors.step
        if moved is not None and not self.by_stream:
            parts.append(f"{moved.points:+.1f} points ({moved.low:+.1f} to {moved.high:+.1f})")
        parts += [
            f"likely cause: {change.says}, within the onset set"
            for change in self.changes
            if change.likely_cause
        ]
        return "; ".join(parts)

    @property
    def lines(self) -> tuple[str, ...]:
        """The drift where there is one, and the changes of the model that are not behind it."""
        told = [
            f"{change.says}: no drift at that time"
            for change in self.changes
            if not change.likely_cause
        ]
        return tuple(told) if self.cause == "none" else (self.says, *told)

    @property
    def _what(self) -> str:
        if self.cause == "coach or policy":
            return "coach or policy has drifted, or other problems came: scores cannot tell which,"
        if self.cause == "policy or order":
            return "policy has drifted or other problems came, scores cannot tell which,"
        return f"{self.cause} has drifted"

    @property
    def _could_be(self) -> str:
        if self.earliest == self.latest:
            return ""
        return f" ({self.earliest} to {self.latest})"


def drift_state(
    streamed: ScoreStream, anchors: AnchorHistory, changes: Sequence[ModelChange] = ()
) -> DriftState:
    """Test for drift on every iteration there is.

    Args:
        streamed: The scores of what the policies did.
        anchors: What the anchors got.
        changes: Of the coach's model.
    """
    played = bet_on_anchors(anchors.scores)
    scores = drift.bet_on_stream(streamed.rounds)
    still = False
    if scores.onset is not None:
        since = bisect_left(anchors.iterations, streamed.iterations[scores.onset])
        still = held_still(anchors.scores, since, streamed.task_types)
    own = scores.alarmed and drift.bet_on_own_ranks(streamed.rounds, streamed.played).alarmed
    cause = drift.attribute(played.together, scores, anchors.rubric_changes, still=still, own=own)
    onset = _onset(cause, played, scores, streamed)
    when = streamed.iterations if cause in BY_STREAM else anchors.iterations
    since, earliest, latest = (None, None, None) if onset is None else (when[at] for at in onset)
    state = DriftState(
        cause=cause,
        anchors=played,
        stream=scores,
        since=since,
        earliest=earliest,
        latest=latest,
        iterations=streamed.iterations,
        anchor_iterations=anchors.iterations,
        changes=tuple(changes),
    )
    return replace(state, changes=tuple(_judged(change, state) for change in changes))


def drift_figures(state: DriftState, streamed: ScoreStream) -> Iterator[Figure]:
    """The state of the drift test as findings, with an e-value for every iteration.

    The anchors of each task type have one of their own, and so has each change of the model.
    """
    found = Figure(
        kind="drift",
        subject="",
        unit="largest e-value",
        actions=streamed.actions,
        problems=len(streamed.problems),
    )
    parts = (
        ("anchors", state.anchors.together, drift_sql.ANCHORS, state.anchor_iterations),
        ("stream", state.stream, drift_sql.STREAM, state.iterations),
    )
    for name, wealth, query, iterations in parts:
        if len(wealth.e_values):
            yield replace(
                found,
                subject=name,
                verdict=state.cause if wealth.alarmed else "none",
                estimate=float(wealth.e_values.max()),
                margin=wealth.threshold,
                iteration=state.since if wealth.alarmed else None,
                sql=query,
                detail={
                    **_steps(iterations, wealth.e_values),
                    **(_when(state) if wealth.alarmed else {}),
                },
            )
    yield from _by_type(state, found)
    yield from map(_of_change, state.changes)


def _by_type(state: DriftState, found: Figure) -> Iterator[Figure]:
    for kind, e_values in state.anchors.by_type.items():
        named = kind in state.task_types
        yield replace(
            found,
            subject=f"anchors, {kind}",
            verdict=state.cause if named else "none",
            estimate=float(e_values.max()),
            margin=state.anchors.together.threshold,
            iteration=state.since if named else None,
            sql=drift_sql.anchors_of(kind),
            detail=_steps(state.anchor_iterations, e_values),
        )


def _of_change(change: ModelChange) -> Figure:
    return Figure(
        kind="model_change",
        subject=change.after,
        against=change.before,
        verdict="likely cause" if change.likely_cause else "no drift at that time",
        iteration=change.iteration,
        sql=drift_sql.VERSIONS,
    )


def _steps(iterations: Sequence[int], e_values: Floats) -> Mapping[str, float]:
    steps = zip(iterations, e_values.tolist(), strict=True)
    return {f"e_{iteration}": value for iteration, value in steps}


def _when(state: DriftState) -> Mapping[str, float | int | None]:
    """The onset's set, and how far the anchors moved where they did."""
    found: dict[str, float | int | None] = {"earliest": state.earliest, "latest": state.latest}
    if (moved := state.anchors.step) is not None:
        found |= {"points": moved.points, "points_low": moved.low, "points_high": moved.high}
    return found


def _onset(
    cause: drift.Cause, played: AnchorBets, scores: drift.Wealth, streamed: ScoreStream
) -> tuple[int, int, int] | None:
    """The round that a drift set in at, the earliest and the latest that it could be; or None."""
    if cause not in BY_STREAM:
        moved = played.step
        return None if moved is None else (moved.start, moved.earliest, moved.latest)
    if scores.onset is None or scores.alarm is None:
        return None
    means = np.array([float(each.mean()) for each in streamed.rounds[: scores.alarm + 1]])
    if len(means) == 1:
        return scores.onset, scores.onset, scores.onset
    could = step(np.zeros(0), means)
    return scores.onset, min(could.earliest, scores.onset), max(could.latest, scores.onset)


def _judged(change: ModelChange, state: DriftState) -> ModelChange:
    """Whether the change lies where a drift set in that it could be behind."""
    earliest, latest = state.earliest, state.latest
    if state.cause not in BY_MODEL or earliest is None or latest is None:
        return change
    return replace(change, likely_cause=earliest <= change.iteration <= latest)
