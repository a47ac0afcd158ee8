"""`mappa train --fork RUN`: the configuration of a run that goes on from another one's weights."""

from collections.abc import Sequence

from mappa_core.app.checks import check_same_weights, check_weights
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.app.databases import opened_store
from mappa_core.core.settings import Settings
from mappa_core.train.forking import check_fork, newest_whole_step


def forked_config(
    name: str, step: int | None, overrides: Sequence[str], settings: Settings
) -> TrainConfig:
    """The configuration of run `name`, starting after `step` of its updates.

    Args:
        name: Name, id or a prefix of either.
        step: None for the newest step whose files are whole for every agent.
        overrides: What the new run does in another way.
        settings: Where the store is.

    Raises:
        NotFound: No such run.
        ConfigError: The overrides cannot be run, or not with that run's weights.
        LearnerError: The weights after `step` updates are missing or damaged.
    """
    with opened_store(settings) as store:
        run = store.runs.get_run(name)
        config = TrainConfig.model_validate(run.config)
        if step is None:
            step = newest_whole_step(store, run.id, check_weights)
        start = [f"start.run={run.id}", f"start.step={step}"]
        forked = with_overrides(config, [*start, *overrides])
        source = store.runs.get_run(forked.start.run)
        check_same_weights(source, forked, "a fork")
        check_fork(source, forked.start.step, store, check_weights)
    return forked
