"""What the page of a training run in Prefect leads to: MLflow, report, audit, the next thing to do.

The artifact `run-NAME` is there from the run's start; when training has ended its last version has
the gain, the audit's verdict and the command that follows from both.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import httpx
from prefect.artifacts import acreate_markdown_artifact, acreate_table_artifact

from mappa_core.app.services import Services
from mappa_core.audit.report.text import markdown
from mappa_core.audit.run_audit import DEFAULT_SIMULATIONS, audit_run
from mappa_core.audit.statistics.verdicts import MARGIN_POINTS
from mappa_core.core.errors import MappaError, NotFound
from mappa_core.core.records.runs import Run
from mappa_core.core.settings import SERVED_PAGES, Settings
from mappa_core.evaluate.comparison import Comparison
from mappa_core.evaluate.run_page import html
from mappa_core.evaluate.run_story import read_story

REPORT = "report.html"
"""The run's report among its files in MLflow."""


@asynccontextmanager
async def shown(port: Services, run: Run) -> AsyncGenerator[None]:
    """Lead from the run's page to where it can be watched, and to how it goes on if it fails."""
    await show_start(port, run)
    try:
        yield
    except Exception as failure:
        # Where Prefect is away as well, it is the run's own failure that is told.
        with suppress(httpx.HTTPError, RuntimeError):
            await show_failure(port, run, failure)
        raise


async def show_start(port: Services, run: Run) -> None:
    """Lead from the page of a run that begins to where it can be watched."""
    tracked = _tracked(port, run, "")
    cluster = "" if port.dashboard is None else f"* [Ray]({port.dashboard}): its nodes and actors\n"
    await acreate_markdown_artifact(
        key=key_of(run),
        description=f"{run.name}: where to watch it",
        markdown=f"# {run.name} is training\n\n"
        f"* [MLflow run]({tracked}): metrics of every iteration, one trace per episode\n"
        f"{cluster}"
        f"* `mappa show {run.name}`: its iterations and episodes\n"
        f"* `mappa train --resume {run.name}`: if it stops, goes on where it was\n\n{_where()}",
    )


async def show_failure(port: Services, run: Run, failure: Exception) -> None:
    """Lead from the page of a run that failed to why, and to the command that goes on with it."""
    tracked = _tracked(port, run, "")
    # What is no message of ours says little without its kind.
    why = str(failure) if isinstance(failure, MappaError) else f"Not expected: `{failure!r}`"
    await acreate_markdown_artifact(
        key=key_of(run),
        description=f"{run.name}: why it failed, and how it goes on",
        markdown=f"# {run.name} failed\n\n{why}\n\n"
        f"* [MLflow run]({tracked}): metrics and traces up to there\n"
        f"* `mappa show {run.name}`: its iterations and episodes\n\n"
        f"## Next\n\nNothing that is stored is done again:\n\n"
        f"    mappa train --resume {run.name}\n\n{_where()}",
    )


async def show_end(port: Services, run: Run, step: int, comparison: Comparison) -> None:
    """Lead from the page of a trained run to all that tells what came of it, and what to do."""
    tracker_run_id = run.mlflow_run_id or ""
    await asyncio.to_thread(port.tracker.log, tracker_run_id, step, comparison.metrics())
    measured = await acreate_table_artifact(
        key="before-and-after",
        table=comparison.table(),
        description=f"{run.name}: held-out problems before and after training, paired",
    )
    page = html(await asyncio.to_thread(read_story, port.store, run))
    await asyncio.to_thread(port.tracker.attach, tracker_run_id, REPORT, page)
    verdict, audited = await _audited(port, run)
    report, tracked = _tracked(port, run, REPORT), _tracked(port, run, "")
    gain = (
        f"{comparison.before:.1%} of the held-out episodes were right before, "
        f"{comparison.after:.1%} after: {comparison.difference * 100:+.1f} points "
        f"({comparison.low * 100:+.1f} to {comparison.high * 100:+.1f})"
    )
    command, because = next_step(run.name, comparison, verdict)
    await acreate_markdown_artifact(
        key=key_of(run),
        description=f"{run.name}: what came of it, and what to do next",
        markdown=f"# {run.name}: {comparison.verdict}\n\n{gain}.\n\n"
        f"* [Report]({report}): curves, costs, actions worth reading\n"
        f"{audited}"
        f"* [Before and after](/artifacts/artifact/{measured})\n"
        f"* [MLflow run]({tracked}): metrics, traces, model versions\n\n"
        f"## Next\n\n{because}:\n\n    {command}\n\n{_where()}",
    )


def next_step(name: str, comparison: Comparison, verdict: str) -> tuple[str, str]:
    """The command that comes next, and why.

    Args:
        name: The run's.
        comparison: Of its base with what it became.
        verdict: The audit's; empty where nothing was audited.
    """
    audit = f"mappa audit {name}"
    experiment = f"{audit} --experiment 200"
    if verdict == "biased":
        return audit, "The coach is biased; see for what, before you use the team"
    if verdict == "suspected":
        return experiment, "The coach is suspected of a bias, and only an experiment can tell"
    if comparison.verdict == "better":
        return {
            "equivalent": (
                f"mappa promote {name}",
                "The team is better on problems it never trained on",
            ),
            "": (audit, "The team is better, and whether its coach is fair was not looked at"),
        }.get(verdict, (experiment, "The team is better; whether its coach is fair, this may tell"))
    if comparison.verdict == "worse":
        return f"mappa report {name}", "The team is worse; read which actions were rewarded"
    samples = 4 * comparison.episodes // comparison.problems
    return (
        f"mappa evaluate {name} evaluation.samples={samples}",
        "So few episodes cannot tell; play the held-out problems more often",
    )


def key_of(run: Run) -> str:
    """The key of the artifact that leads on from a run's page."""
    return f"run-{run.name}"


async def _audited(port: Services, run: Run) -> tuple[str, str]:
    """The audit's verdict and the line that leads to it; nothing where nothing can be audited."""
    if port.audit is None:
        return "", ""
    try:
        audited = await asyncio.to_thread(
            audit_run,
            port.audit,
            run.name,
            MARGIN_POINTS,
            record=True,
            simulations=DEFAULT_SIMULATIONS,
        )
    except NotFound:
        return "", ""
    told = markdown(audited.seen, audited.result, audited.rates)
    verdict = audited.result.verdict
    artifact = await acreate_markdown_artifact(key="audit", markdown=told)
    return verdict, f"* [Audit](/artifacts/artifact/{artifact}) of the coach: {verdict}\n"


def _tracked(port: Services, run: Run, file: str) -> str:
    return f"{Settings().mlflow_pages}/{port.tracker.place(run.mlflow_run_id or '', file)}"


def _where() -> str:
    """What has to run for the links to lead anywhere."""
    served = Settings().mlflow_pages == SERVED_PAGES
    return "MLflow's pages are there while `mappa serve` runs.\n" if served else ""
