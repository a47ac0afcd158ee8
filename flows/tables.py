"""What the commands print: tables for people, JSON for scripts."""

import shutil
import sys
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from flows.benches.report import BenchReport
from flows.doctor import Finding
from flows.score_tables import print_score_in_full
from mappa_core.domain import ids
from mappa_core.domain.records import (
    CoachScore,
    Episode,
    EpisodeSummary,
    Run,
    RunStatus,
    ScoreEntry,
    ToolResult,
    Turn,
    Update,
    UpdateEntry,
)
from mappa_core.evaluation.comparison import Comparison
from mappa_core.learning.memory_plan import GB, MemoryPlan
from mappa_core.ports import Store

LOST = "lost"
"""Of a run whose process was killed, or ran out of memory."""
SHOWN_IDS = 24
"""Token ids printed from each end of a long list."""
SHOWN_ID_CHARACTERS = 13
"""Of an episode's id in a list: enough for `mappa show` to find it."""


def comparison_table(comparison: Comparison) -> Table:
    """Before and after on the held-out problems."""
    title = "held-out problems, paired by problem"
    table = Table(title=title, title_justify="left", min_width=len(title))
    for column in ("", "right", "of", "share"):
        table.add_column(column, justify="left" if not column else "right")
    for name, rate in (("before", comparison.before), ("after", comparison.after)):
        right = round(rate * comparison.episodes)
        table.add_row(name, str(right), str(comparison.episodes), f"{rate:.1%}")
    return table


def gain(comparison: Comparison) -> str:
    """The difference, how sure it is, and what that means."""
    return (
        f"gain {100 * comparison.difference:+.1f} points, 95 % interval "
        f"{100 * comparison.low:+.1f} to {100 * comparison.high:+.1f}: {comparison.verdict}"
    )


def where_next(run_name: str) -> str:
    """What to look at after a run."""
    mappa = Path(sys.argv[0]).name if shutil.which("mappa") else sys.argv[0]
    return "\n".join(
        (
            "where to look next:",
            f"  {mappa} show {run_name}   its iterations and episodes",
            f"  {mappa} show EPISODE   one conversation with scores and rationales",
            f'  psql "$({mappa} db url)"   the rows; start with audit.action_scores',
            f"  {mappa} serve   the Prefect and MLflow pages",
        )
    )


def runs_table(runs: Sequence[Run], claimed: AbstractSet[UUID]) -> Table:
    """All runs, a line each.

    Args:
        runs: The runs.
        claimed: Those that have a process.
    """
    table = Table()
    table.add_column("run", no_wrap=True)
    for column in ("status", "seed", "started"):
        table.add_column(column, no_wrap=True)
    table.add_column("note", overflow="fold")
    for run in runs:
        started = f"{run.started_at:%Y-%m-%d %H:%M}"
        status = _standing(run, claimed)
        note = "killed: resume it" if status == LOST else ""
        table.add_row(run.name, status, str(run.seed), started, run.error or note)
    return table


def _standing(run: Run, claimed: AbstractSet[UUID]) -> str:
    """The run's status; one whose process could not write it down any more is lost."""
    lost = run.status is RunStatus.RUNNING and run.id not in claimed
    return LOST if lost else run.status.value


def runs_json(runs: Sequence[Run], claimed: AbstractSet[UUID]) -> list[dict[str, str | int | None]]:
    """All runs, for a script; arguments as of `runs_table`."""
    return [
        {
            "id": str(run.id),
            "name": run.name,
            "team": run.team,
            "status": _standing(run, claimed),
            "seed": run.seed,
            "started_at": run.started_at.isoformat(),
            "prefect_flow_run_id": run.prefect_flow_run_id,
            "mlflow_run_id": run.mlflow_run_id,
            "error": run.error,
        }
        for run in runs
    ]


def print_run(console: Console, store: Store, run: Run) -> None:
    """A run: what it is, its iterations, and episodes worth opening."""
    console.print(runs_table([run], store.claimed_runs()))
    console.print(_run_facts(run), highlight=False, soft_wrap=True)
    summaries = store.episode_summaries(run.id)
    console.print(iterations_table(summaries))
    console.print(_episodes_table(summaries))


def iterations_table(summaries: Sequence[EpisodeSummary]) -> Table:
    """How many episodes of each iteration came out right, and how they were scored."""
    table = Table(title="iterations", title_justify="left")
    for column in ("phase", "iteration", "episodes", "right", "mean score"):
        table.add_column(column, justify="right")
    for phase, iteration in sorted({(s.phase, s.iteration) for s in summaries}):
        of_it = [s for s in summaries if (s.phase, s.iteration) == (phase, iteration)]
        scores = [s.mean_score for s in of_it if s.mean_score is not None]
        mean = f"{sum(scores) / len(scores):.2f}" if scores else "-"
        right = sum(bool(s.success) for s in of_it)
        table.add_row(phase, str(iteration), str(len(of_it)), str(right), mean)
    return table


def _run_facts(run: Run) -> str:
    links = (
        ("code", run.code_version),
        ("sandbox", run.sandbox_tier),
        ("Prefect flow run", run.prefect_flow_run_id),
        ("MLflow run", run.mlflow_run_id),
    )
    return "\n".join(f"{name}: {value}" for name, value in links if value)


def _episodes_table(summaries: Sequence[EpisodeSummary]) -> Table:
    scored = [s for s in summaries if s.mean_score is not None]
    ranked = sorted(scored, key=lambda s: (s.mean_score or 0.0, str(s.id)))
    chosen = ranked[:4] + ranked[-4:] if len(ranked) > 8 else ranked
    table = Table(title="lowest and highest scored episodes", title_justify="left")
    for column in ("episode", "iteration", "task", "right", "mean score"):
        table.add_column(column)
    for summary in chosen:
        right = "-" if summary.success is None else ("yes" if summary.success else "no")
        score = f"{summary.mean_score:.2f}"
        shown_id = str(summary.id)[:SHOWN_ID_CHARACTERS]
        table.add_row(shown_id, str(summary.iteration), summary.task_type, right, score)
    return table


def print_episode(
    console: Console, store: Store, episode: Episode, *, in_full: bool = False
) -> None:
    """The whole conversation of an episode: what was seen, said, run, scored and learnt.

    Args:
        console: Where to print.
        store: Where its scores are.
        episode: Which one.
        in_full: Also what each coach was asked and answered, word for word.
    """
    scores = store.scores(episode.id)
    learnt = store.learnt(episode.id)
    header = Table.grid(padding=(0, 2))
    for key, value in _facts(episode):
        header.add_row(Text(key, style="dim"), Text(value))
    console.print(Panel(header, title="episode", title_align="left"))
    for turn in episode.turns:
        action = ids.action_id(episode.id, turn.index)
        console.print(Rule(f"turn {turn.index}: {turn.agent}", align="left"))
        _print_turn(console, turn)
        for entry in scores:
            if entry.action_id == action:
                _print_score(console, entry)
                if in_full:
                    print_score_in_full(console, entry)
        _print_learnt(console, action, learnt.get(action))


def _facts(episode: Episode) -> list[tuple[str, str]]:
    outcome = episode.outcome
    verdict = "none" if outcome is None else ("right" if outcome.success else "wrong")
    answered = f", answered {outcome.answer}" if outcome else ""
    return [
        ("id", str(episode.id)),
        ("run", str(episode.run_id)),
        ("played", f"{episode.phase}, iteration {episode.iteration}"),
        ("problem", f"{episode.problem.task_type}: {episode.problem.statement}"),
        ("expected", episode.problem.answer),
        ("outcome", f"{verdict}{answered}"),
        ("ended", episode.stop_reason.value if episode.stop_reason else "still running"),
        *([("error", episode.error)] if episode.error else []),
    ]


def _print_turn(console: Console, turn: Turn) -> None:
    action = turn.action
    for message in turn.observation.messages:
        console.print(Text(f"{message.role}> ", style="dim"), Text(message.content), sep="")
    console.print(Text(f"{turn.agent}> ", style="bold cyan"), Text(action.text), sep="")
    facts = (
        f"{len(action.prompt_token_ids)} prompt ids, {len(action.token_ids)} sampled "
        f"({action.finish_reason.value}), log-prob {sum(action.logprobs):.3f} in all, "
        f"temperature {action.temperature:g}, seed {action.seed}, "
        f"{action.seconds:.2f} s, policy {action.policy_version_id}"
    )
    console.print(Text(facts, style="dim"))
    console.print(Text(f"prompt ids  {_shortened(action.prompt_token_ids)}", style="dim"))
    console.print(Text(f"sampled ids {_shortened(action.token_ids)}", style="dim"))
    rounded = tuple(round(logprob, 3) for logprob in action.logprobs)
    console.print(Text(f"log-probs   {_shortened(rounded)}", style="dim"))
    if turn.tool_result is not None:
        _print_tool(console, turn.tool_result)


def _shortened(values: Sequence[float]) -> str:
    if len(values) <= 2 * SHOWN_IDS:
        return " ".join(str(value) for value in values)
    ends = (values[:SHOWN_IDS], values[-SHOWN_IDS:])
    left, right = (" ".join(str(value) for value in end) for end in ends)
    return f"{left} ... {len(values) - 2 * SHOWN_IDS} more ... {right}"


def _print_tool(console: Console, result: ToolResult) -> None:
    title = f"program: {result.status.value}, exit code {result.exit_code}, {result.seconds:.2f} s"
    body = Text(result.code.rstrip())
    for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
        if stream:
            body.append(f"\n--- {name}\n", style="dim")
            body.append(stream.rstrip())
    console.print(Panel(body, title=title, title_align="left", subtitle=result.tier))


def _print_score(console: Console, entry: ScoreEntry) -> None:
    who = f"{entry.identity.coach} coach {entry.identity.model_version}"
    trained = "" if entry.trained else " (not trained on)"
    if isinstance(entry.score, CoachScore):
        console.print(Text(f"{who}: {entry.score.value:g} of 10{trained}", style="bold green"))
        console.print(Text(entry.score.rationale))
    else:
        unscored = f"{who}: unscored, {entry.score.reason}: {entry.score.detail}{trained}"
        console.print(Text(unscored, style="bold red"))


def _print_learnt(
    console: Console, action: UUID, learnt: tuple[Update, UpdateEntry] | None
) -> None:
    if learnt is None:
        console.print(Text(f"action {action}; entered no update", style="dim"))
        return
    update, entry = learnt
    how = (
        f"left out: {entry.left_out}"
        if entry.left_out is not None
        else f"advantage {entry.advantage:+.3f}, weight {entry.weight:.4f}"
    )
    console.print(
        Text(
            f"action {action}; {how}; update {update.id} (iteration {update.iteration}) made "
            f"policy {update.to_policy_id}",
            style="dim",
        )
    )


def doctor_table(findings: Sequence[Finding]) -> Table:
    """What the machine offers."""
    table = Table()
    for column in ("", "what", "found", "how to get it"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        mark = Text("yes", style="green") if finding.works else Text("no", style="yellow")
        table.add_row(mark, finding.name, finding.found, finding.advice)
    return table


def plan_table(planned: MemoryPlan) -> Table:
    """What a run keeps where."""
    found = f"{planned.gpu_bytes / GB:.0f} GB GPU, all agents: "
    found += "fits" if planned.fits else "does not fit"
    table = Table(title=found, title_justify="left")
    for column in ("phase", "what", "GPU, GB", "CPU, GB"):
        table.add_column(column, justify="left" if column in ("phase", "what") else "right")
    for item in planned.items:
        table.add_row(
            item.phase, item.what, f"{item.gpu_bytes / GB:.1f}", f"{item.host_bytes / GB:.1f}"
        )
    for phase in ("rollout", "update"):
        table.add_row(phase, "together", f"{planned.peak(phase) / GB:.1f}", "", style="bold")
    cache = f"each cache holds {planned.cached_tokens:,} tokens; the longest sequence has "
    table.caption = f"{cache}{planned.longest:,}; CPU at most {planned.host_bytes / GB:.0f} GB"
    return table


def bench_table(report: BenchReport) -> Table:
    """Measured figures beside their aims."""
    table = Table(title=f"{report.bench} on {report.machine}", title_justify="left")
    for column in ("figure", "value", "unit", "aim", "met"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for figure in report.figures:
        met = "" if figure.met is None else ("yes" if figure.met else "no")
        table.add_row(figure.name, f"{figure.value:.3f}", figure.unit, figure.aim or "", met)
    if report.absent:
        table.caption = "\n".join(f"not measured: {each}" for each in report.absent)
        table.caption_justify = "left"
    return table
