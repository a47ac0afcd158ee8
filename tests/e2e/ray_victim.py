"""A training run in a Ray cluster, in a process: `python -m tests.e2e.ray_victim ...`."""

import asyncio
import json
import sys
from pathlib import Path

from flows.train import train
from mappa_cli.benches.cluster_run import on_cluster
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import use
from mappa_core.store.store import Store
from tests.e2e.toy import toy_services


def main(
    url: str, model: str, folder: str, config: str, address: str, resume: str | None = None
) -> None:
    resolved = TrainConfig.model_validate(json.loads(config))
    port = toy_services(resolved, Store.open(url), Path(model), Path(folder) / "checkpoints")

    async def body() -> None:
        async with on_cluster(port, resolved, address, Path(folder)) as (there, _):
            with use(there):
                await train(resolved, resume)

    asyncio.run(body())


if __name__ == "__main__":
    main(*sys.argv[1:])
