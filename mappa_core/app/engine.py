"""What a run's engine is opened with, and how its servers begin before the run does."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from mappa_core.app.config import TrainConfig
from mappa_core.app.fitting import server_cache_bytes
from mappa_core.app.placement import Placement, placement
from mappa_core.core.settings import Settings
from mappa_core.rollout.engines import prestarted
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.teams.base import Team


@contextmanager
def engine_prestarted(
    config: TrainConfig, settings: Settings, team: Team
) -> Generator[Callable[[], None]]:
    """Begin what takes longest in starting a run's engine; the run in the block takes it.

    Gives what begins its servers, which needs torch; where they are in a cluster, both do nothing.
    """
    if config.cluster.backend == "ray":
        yield lambda: None
        return
    with prestarted(config.engine, settings.logs) as begin:

        def begin_servers() -> None:
            from mappa_core.models.resolve import resolve_model

            model = str(resolve_model(config.model, settings.models))
            placed = placement(config, len(team.agents))
            # No server is told which tokens end a turn: each request says it.
            begin(engine_setup(config, settings, team, model, (), placed))

        yield begin_servers


def engine_setup(
    config: TrainConfig,
    settings: Settings,
    team: Team,
    model: str,
    ends: tuple[int, ...],
    placed: Placement,
) -> EngineSetup:
    """Say what a run's engine is opened with, its servers' caches as they were planned."""
    return EngineSetup(
        config=config.engine,
        model=model,
        name=config.model,
        agents=tuple(agent.name for agent in team.agents),
        end_token_ids=ends,
        work_directory=settings.home / "engine",
        log_directory=settings.logs,
        whole_weights=config.learner.weights == "full",
        lora_rank=config.learner.lora.rank,
        gpu_cache_bytes=server_cache_bytes(config, settings, len(team.agents), placed),
        replicas=placed.replicas,
        devices=placed.servers if any(placed.servers) else (),
        sleeps=placed.sleeps,
    )
