"""A call of a tool in a whole run, played by episode and by action."""

import asyncio
from dataclasses import replace

import pytest

from flows.rollout import rollout
from mappa_core.app.config import TrainConfig
from mappa_core.app.runs import prepare_run, stored_run
from mappa_core.app.services import use
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import Caller, Cave


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["episode", "action"])
def test_calls_reach_the_toolbox_and_their_results_the_store(
    store: Store, make_services: MakeServices, toy_config: TrainConfig, granularity: str
) -> None:
    short = {"iterations": 1, "episodes_per_problem": 2, "granularity": granularity}
    config = toy_config.model_copy(update={"rollout": toy_config.rollout.model_copy(update=short)})
    services = replace(make_services(config), team=Caller(), toolbox=Cave())

    async def body() -> None:
        await services.engine.start()
        with use(services):
            run = prepare_run(services, stored_run(services, config, None), config)
            await rollout(run.id, "train", 1, 0, config)

    asyncio.run(body())
    (run,) = store.runs.list_runs()
    for summary in store.episodes.list_episodes(run.id):
        (turn,) = store.episodes.get_episode(str(summary.id)).turns
        assert turn.tool_result is not None
        assert turn.tool_result.stdout == f"{turn.action.text}!"
        assert turn.tool_result.tier == "mcp:cave"
