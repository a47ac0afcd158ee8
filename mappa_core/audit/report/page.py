"""Findings as one HTML page that needs nothing else: plots inside, every number beside its SQL."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mappa_core.audit import sql
from mappa_core.audit.findings import Audit, Material
from mappa_core.audit.records import Finding
from mappa_core.audit.report.text import TITLES, interval
from mappa_core.audit.statistics.selftest import Rate

INK, FAINT = "#1f2937", "#9ca3af"
COLOURS = {
    "biased": "#b91c1c",
    "equivalent": "#15803d",
    "cannot tell": "#a16207",
    "coach": "#b91c1c",
    "rubric": "#b91c1c",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture with a title, as inline SVG."""

    title: str
    svg: str
    sql: str
    """Gives the numbers that are drawn."""


def html(material: Material, result: Audit, rates: Sequence[Rate], *, recorded: bool) -> str:
    """The whole page.

    Args:
        material: What was audited.
        result: What came out.
        rates: How often an audit of a run of this shape is wrong, by simulation.
        recorded: Whether the findings are rows in the database that was audited.
    """
    run = escape(material.run.name)
    plots = "".join(
        f"<figure><figcaption>{escape(plot.title)}</figcaption>{plot.svg}"
        f"{_query('SQL', plot.sql)}</figure>"
        for plot in plots_of(material, result)
    )
    tables = "".join(
        _table(title, [f for f in result.findings if f.kind == kind], recorded=recorded)
        for kind, title in TITLES.items()
    )
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Audit of {run}</title>"
        f"<style>{_CSS}</style><h1>Audit of {run}</h1>{_headline(material, result)}"
        f"{_rates(rates, material.margin)}<section class=plots>{plots}</section>{tables}"
        f"<p class=faint>Click a number for the SQL behind it; it runs on the views of the schema "
        f"<code>audit</code>. {_RECORDED if recorded else _NOT_RECORDED}</p></html>"
    )


def plots_of(material: Material, result: Audit) -> Sequence[Plot]:
    """All pictures that the material has data for."""
    family = [finding for finding in result.findings if finding.kind == "task_type"]
    drift = [finding for finding in result.findings if finding.kind == "drift"]
    wanted: list[tuple[str, bool, Callable[[Axes], None], str]] = [
        (
            "Effects of task type, with 95 % intervals; the band is the margin",
            bool(family),
            lambda axes: _draw_effects(axes, family, material.margin),
            ";\n\n".join(finding.sql for finding in family),
        ),
        (
            "Scores by task type",
            True,
            lambda axes: _draw_scores(axes, material),
            sql.SCORES_BY_TYPE,
        ),
        (
            "Score against outcome",
            True,
            lambda axes: _draw_calibration(axes, material),
            sql.OUTCOMES_BY_SCORE,
        ),
        (
            "Evidence of drift (e-values)",
            bool(drift),
            lambda axes: _draw_drift(axes, drift),
            ";\n\n".join(finding.sql for finding in drift),
        ),
        (
            "Noise floor: deviation of repeats by mean score",
            material.opinions.trainer is not None,
            lambda axes: _draw_noise(axes, material),
            sql.REPEATS,
        ),
    ]
    return [
        Plot(title=title, svg=_svg(draw), sql=sql.of_run(query, material.run.id))
        for title, there, draw, query in wanted
        if there
    ]


def _svg(draw: Callable[[Axes], None]) -> str:
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    written = text.getvalue()
    return written[written.index("<svg") :]


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
    labels = [f"{f.subject}, {f.stratum}" for f in reversed(family)]
    axes.set_yticks(range(len(family)), labels)
    axes.set_ylim(-0.6, len(family) - 0.4)
    axes.set_xlabel("points")


def _draw_scores(axes: Axes, material: Material) -> None:
    edges = np.arange(-0.25, 10.5, 0.5)
    for code in material.frame.task_type.present():
        scores = material.frame.score[material.frame.task_type.codes == code]
        name = material.frame.task_type.names[code]
        axes.hist(
            scores[~np.isnan(scores)],
            bins=edges.tolist(),
            density=True,
            histtype="step",
            label=name,
            linewidth=2,
        )
    axes.set_xlabel("score")
    axes.set_yticks([])
    axes.legend(frameon=False, fontsize=8)


def _draw_calibration(axes: Axes, material: Material) -> None:
    frame = material.frame.judged()
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
            if isinstance(value, float | int)
        }
        axes.plot(list(steps), list(steps.values()), "o-", markersize=3, label=finding.subject)
        if finding.margin is not None:
            axes.axhline(finding.margin, color=FAINT, linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_xlabel("iteration")
    axes.set_ylabel("e-value; alarm at the dashes")
    axes.legend(frameon=False, fontsize=8)


def _draw_noise(axes: Axes, material: Material) -> None:
    trainer = material.opinions.trainer
    assert trainer is not None
    table = material.opinions.table(trainer)
    table = table[(~np.isnan(table)).sum(axis=1) > 1]
    if len(table):
        axes.plot(np.nanmean(table, axis=1), np.nanstd(table, axis=1, ddof=1), "o", color=INK)
    axes.set_xlabel("mean score of an action")
    axes.set_ylabel("deviation, points")


def _headline(material: Material, result: Audit) -> str:
    frame, colour = material.frame, COLOURS[result.verdict]
    size = f"{len(frame)} actions on {len(frame.problem.present())} problems"
    return (
        f"<p class=verdict style='color:{colour}'>{result.verdict}</p>"
        f"{_query(size, sql.of_run(sql.SIZE, material.run.id))}<p>Biases below "
        f"{material.margin:g} points do not matter to this audit.</p>"
    )


def _query(summary: str, query: str) -> str:
    """Something to click, and the SQL behind it."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(query)};</pre></details>"


def _rates(rates: Sequence[Rate], margin: float) -> str:
    if not rates:
        return ""
    items = "".join(
        f"<li>{escape(rate.name)}: {rate.share:.1%} (95 % interval {rate.interval()[0]:.1%} to "
        f"{rate.interval()[1]:.1%}, {rate.runs} simulated runs)"
        for rate in rates
    )
    return (
        "<p>An audit of a run of this shape, by simulation (<code>mappa audit RUN --margin "
        f"{margin:g} --simulations {rates[0].runs}</code> gives them again):</p><ul>{items}</ul>"
    )


def _table(title: str, findings: Sequence[Finding], *, recorded: bool) -> str:
    if not findings:
        return ""
    rows = "".join(_row(finding, recorded=recorded) for finding in findings)
    return (
        f"<h2>{escape(title)}</h2><table><tr><th>of<th>against<th>episodes<th>estimate, 95 % "
        f"interval<th>unit<th>p<th>actions<th>problems<th>verdict{rows}</table>"
    )


def _row(finding: Finding, *, recorded: bool) -> str:
    p_value = "" if finding.p_value is None else f"{finding.p_value:.3g}"
    subject = finding.subject
    if finding.iteration is not None and finding.kind in ("update_share", "alert"):
        subject = f"{subject}, iteration {finding.iteration}"
    colour = COLOURS.get(finding.verdict, INK)
    more = finding.detail.get("more_actions")
    hint = f" (about {more:,} more actions would)" if more else ""
    hint = hint if finding.verdict == "cannot tell" and finding.kind == "task_type" else ""
    stored = f"\n\n-- all of it as stored\n{sql.stored(finding.id)};" if recorded else ""
    extra = ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in finding.detail.items()
        if finding.kind != "drift" and value is not None
    )
    gives = "gives the figure" if " AS estimate" in finding.sql else "what it was worked out from"
    query = escape(f"-- {gives}\n{finding.sql};{stored}")
    return (
        f"<tr><td>{escape(subject)}<td>{escape(finding.against)}<td>{finding.stratum}"
        f"<td><details><summary>{escape(interval(finding))}</summary><p>{escape(extra)}</p>"
        f"<pre>{query}</pre></details><td>{escape(finding.unit)}<td>{p_value}"
        f"<td>{finding.actions}<td>{finding.problems or ''}"
        f"<td style='color:{colour}'>{escape(finding.verdict)}{hint}"
    )


_RECORDED = "What was worked out from rows (intervals, an onset, e-values) is a row itself."
_NOT_RECORDED = (
    "Intervals, an onset and e-values were worked out from the rows that the queries give; nothing "
    "was written to this database."
)
_CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2937;max-width:1180px;margin:2rem auto;padding:0
1rem}h1,h2{font-weight:600}h2{font-size:1.1rem;margin-top:2rem}.verdict{font-size:1.6rem;
font-weight:700;margin:.2rem 0}.plots{display:grid;grid-template-columns:1fr 1fr;gap:1rem}figure{
margin:0}figcaption{font-weight:600;font-size:.9rem}svg{max-width:100%;height:auto}table{
border-collapse:collapse;width:100%;font-size:.88rem}th,td{text-align:left;padding:.25rem .6rem;
border-bottom:1px solid #e5e7eb;vertical-align:top}summary{cursor:pointer;text-decoration:
underline dotted}pre{background:#f3f4f6;padding:.6rem;overflow-x:auto;user-select:all}.faint{
color:#6b7280}
"""
