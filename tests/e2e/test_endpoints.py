"""A run on servers that run already goes on where one is added and another one is killed."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.core.records.runs import RunStatus
from mappa_core.models.tokenizer import ChatTokenizer
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.transformers.vllm_stub import Flags, VllmStub, free_port
from mappa_core.rollout.engines.vllm.endpoints_engine import EndpointsEngine
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.test_killed import play_here, weights


@pytest.mark.slow
def test_a_run_ends_with_the_same_weights_whichever_servers_it_has(
    store: Store,
    make_services: MakeServices,
    tiny_model: Path,
    tmp_path: Path,
    toy_config: TrainConfig,
) -> None:
    rollout = toy_config.rollout.model_copy(update={"iterations": 3})
    config = toy_config.model_copy(update={"rollout": rollout})
    alone = play_here(make_services(config), config)
    ends = ChatTokenizer(tiny_model).end_token_ids
    flags = Flags(model=tiny_model, max_model_len=1024, end_token_ids=ends)
    first, second = VllmStub(flags, free_port()), VllmStub(flags, free_port())
    setup = EngineSetup(
        config=EngineConfig(urls=(first.url, second.url)),
        model=tiny_model,
        agents=("speaker",),
        end_token_ids=ends,
        work_directory=tmp_path / "work",
        log_directory=tmp_path / "logs",
        lora_rank=config.learner.lora.rank,
    )

    async def sabotaged() -> None:
        while len(first.sampled) < 8:
            await asyncio.sleep(0.01)
        await second.start()
        # In the middle of the second iteration.
        while len(first.sampled) < 32:
            await asyncio.sleep(0.01)
        await first.kill()

    async def body(services: Services) -> None:
        await first.start()
        await services.engine.start()
        sabotage = asyncio.create_task(sabotaged())
        with use(services):
            await train(config)
        await asyncio.gather(sabotage, services.engine.close())
        await second.kill()

    engine = EndpointsEngine(setup, look_again_seconds=0.05)
    asyncio.run(body(replace(make_services(config), engine=engine)))
    (run,) = (run for run in store.runs.list_runs() if run.id != alone)
    assert run.status is RunStatus.COMPLETED
    assert len(second.sampled) > 24
    assert weights(store, run.id) == weights(store, alone)
