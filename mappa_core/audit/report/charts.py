"""The pictures of an audit, each with the SQL that gives what is drawn."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from mappa_core.audit import sql
from mappa_core.audit.findings import AuditInput, AuditResult
from mappa_core.audit.frame import Frame, Ratings
from mappa_core.audit.records import Finding
from mappa_core.pages.render import inline_svg

INK, FAINT = "#1f2937", "#9ca3af"
COLOURS = {
    "biased": "#b91c1c",
    "suspected": "#c2410c",
    "equivalent": "#15803d",
    "cannot tell": "#a16207",
    "coach": "#b91c1c",
    "rubric": "#b91c1c",
}
"""Of verdicts."""
INCHES = (5.6, 3.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture with a title, as inline SVG."""

    title: str
    svg: str
    sql: str
    """Gives the numbers that are drawn."""


def plots(seen: AuditInput, result: AuditResult) -> Iterator[Plot]:
    """Yield all pictures that there are data for."""

    def plot(title: str, draw: Callable[[Axes], None], *queries: str) -> Plot:
        query = sql.of_run(";\n\n".join(queries), seen.run.id)
        return Plot(title=title, svg=inline_svg(draw, INCHES), sql=query)

    family = [finding for finding in result.findings if finding.kind == "task_type"]
    drift = [finding for finding in result.findings if finding.kind == "drift"]
    if family:
        yield plot(
            "Effects of task type, with 95 % intervals; the band is the margin",
            lambda axes: _draw_effects(axes, family, seen.margin),
            *(finding.sql for finding in family),
        )
    scores, outcomes = sql.SCORES_BY_TYPE, sql.OUTCOMES_BY_SCORE
    yield plot("Scores by task type", lambda axes: _draw_scores(axes, seen.frame), scores)
    yield plot("Score against outcome", lambda axes: _draw_calibration(axes, seen.frame), outcomes)
    if drift:
        yield plot(
            "Evidence of drift (e-values)",
            lambda axes: _draw_drift(axes, drift),
            *(finding.sql for finding in drift),
        )
    if seen.ratings.trainer is not None:
        yield plot(
            "Noise floor: deviation of repeats by mean score",
            lambda axes: _draw_noise(axes, seen.ratings),
            sql.REPEATS,
        )


def _draw_effects(axes: Axes, family: Sequence[Finding], margin: float) -> None:
    axes.axvspan(-margin, margin, color="#e5e7eb")
    axes.axvline(0, color=FAINT, linewidth=1)
    for row, finding in enumerate(reversed(family)):
        if finding.estimate is None:
            continue
        colour = COLOURS[finding.verdict]
        if finding.low is not None and finding.high is not None:
            axes.plot([finding.low, finding.high], [row, row], color=colour, linewidth=2)
        axes.plot(finding.estimate, row, "o", color=colour)
    labels = [f"{f.subject} against {f.against}, {f.stratum}" for f in reversed(family)]
    axes.set_yticks(range(len(family)), labels)
    axes.set_ylim(-0.6, len(family) - 0.4)
    axes.set_xlabel("points")


def _draw_scores(axes: Axes, frame: Frame) -> None:
    edges = np.arange(-0.25, 10.5, 0.5)
    for code in frame.task_type.present():
        scores = frame.score[frame.task_type.codes == code]
        axes.hist(
            scores[~np.isnan(scores)],
            bins=edges.tolist(),
            density=True,
            histtype="step",
            label=frame.task_type.names[code],
            linewidth=2,
        )
    axes.set_xlabel("score")
    axes.set_yticks([])
    axes.legend(frameon=False, fontsize=8)


def _draw_calibration(axes: Axes, frame: Frame) -> None:
    frame = frame.judged()
    for code in frame.task_type.present():
        rows = frame.take(frame.task_type.codes == code)
        points = np.round(rows.score).astype(np.int64)
        counts = np.bincount(points, minlength=11)
        share = np.bincount(points, weights=rows.success, minlength=11)[counts > 0]
        axes.plot(
            np.flatnonzero(counts),
            share / counts[counts > 0],
            "o-",
            markersize=4,
            label=frame.task_type.names[code],
        )
    axes.set_xlabel("score")
    axes.set_ylabel("share right")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(frameon=False, fontsize=8)


def _draw_drift(axes: Axes, drift: Sequence[Finding]) -> None:
    for finding in drift:
        steps = {
            int(key.removeprefix("e_")): value
            for key, value in finding.detail.items()
            if isinstance(value, float | int) and key.startswith("e_")
        }
        axes.plot(list(steps), list(steps.values()), "o-", markersize=3, label=finding.subject)
        if finding.margin is not None:
            axes.axhline(finding.margin, color=FAINT, linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("iteration")
    axes.set_ylabel("e-value; alarm at the dashes")
    axes.legend(frameon=False, fontsize=8)


def _draw_noise(axes: Axes, ratings: Ratings) -> None:
    assert ratings.trainer is not None
    table = ratings.table(ratings.trainer)
    table = table[(~np.isnan(table)).sum(axis=1) > 1]
    if len(table):
        axes.plot(np.nanmean(table, axis=1), np.nanstd(table, axis=1, ddof=1), "o", color=INK)
    axes.set_xlabel("mean score of an action")
    axes.set_ylabel("deviation, points")
