"""Turns an event of the audit into a flow run that a person sees, with where to look."""

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact

Detail = dict[str, str | int | float | None]


@flow(name="alert", flow_run_name="alert {event} {run_name}", persist_result=False)
async def alert(run_name: str, event: str, detail: Detail | None = None) -> str:
    """Say that something is wrong with the coach of a run; returns what was said.

    Args:
        run_name: The run.
        event: `mappa.audit.drift`, or a verdict such as `mappa.audit.biased`.
        detail: What the event carried.
    """
    said = {
        "mappa.audit.drift": f"the scores of {run_name} have drifted",
        "mappa.audit.biased": f"the coach of {run_name} is biased",
        "mappa.audit.suspected": f"the coach of {run_name} is suspected of a bias",
        "mappa.audit.cannot_tell": f"the audit cannot tell of the coach of {run_name}",
    }.get(event, f"{event} for {run_name}")
    facts = ", ".join(f"{key} {value}" for key, value in (detail or {}).items())
    get_run_logger().warning("%s: see `mappa audit %s` (%s)", said, run_name, facts)
    await acreate_markdown_artifact(
        key="alert", markdown=f"# {said}\n\n{facts}\n\nSee `mappa audit {run_name}`."
    )
    return said
