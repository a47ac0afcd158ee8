"""The promotion flow: candidate against champion, the audit's verdict, and then the alias."""

import asyncio
from collections.abc import Sequence

from prefect import flow
from prefect.artifacts import acreate_markdown_artifact

from mappa_core.app.databases import opened_records
from mappa_core.app.promotion import considered, summary
from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.evaluate import promotion as promoting
from mappa_core.evaluate.audit_objections import waivers
from mappa_core.evaluate.promotion import Case


@flow(name="promote", flow_run_name="promote {run}", persist_result=False)
async def promote(
    run: str, agent: str | None = None, override: str | None = None, waive: Sequence[str] = ()
) -> Case:
    """Make a stored run's last checkpoints champions where the evidence supports it.

    Its coach is audited first.

    Args:
        run: Name, id or a prefix of either.
        agent: Only this agent's checkpoint; None for the whole team.
        override: Why to promote in spite of objections; recorded with the model versions.
        waive: Names of objections that are not to count, e.g. `cannot-tell`; recorded as well.

    Raises:
        PromotionRefused: The gain is not certified, or the coach not shown to be unbiased.
        NotFound: No such run, or it has nothing registered.
        ConfigError: An empty reason, a strange waiver, or the candidates are champions already.
    """
    if override is not None and not override.strip():
        raise ConfigError("an override needs a reason: --override 'why'")
    waived = waivers(waive)
    with opened_records(Settings()) as records:
        case = await asyncio.to_thread(considered, records, run, agent, waived)
        await acreate_markdown_artifact(key="promotion", markdown=summary(case, override))
        await asyncio.to_thread(promoting.promote, case, records.registry, override=override)
    return case
