"""What `dtype: auto` means to a run: decided by the machine, recorded, and kept when it goes on."""

from collections.abc import Iterator

from mappa_core.app.config import TrainConfig
from mappa_core.core.records.provenance import Parts
from mappa_core.core.records.runs import Run
from mappa_core.rollout.config import EngineConfig
from mappa_core.train.config import LearnerConfig


def played_types(config: TrainConfig) -> Parts:
    """Name the types of what this machine computes, as parts of what a run is made with."""
    from mappa_core.models.device import resolve_device, resolve_dtype

    return {
        f"{name}.dtype": str(
            resolve_dtype(section.dtype, resolve_device(section.device))
        ).removeprefix("torch.")
        for name, section in _computed_here(config)
    }


def as_played(run: Run, config: TrainConfig) -> TrainConfig:
    """Put the type that `run` has been played with for each `auto`, where its device is here.

    On another device `auto` is what that one computes best, and the run says so.
    """
    from mappa_core.models.device import device_kind

    parts: Parts = run.provenance[-1].parts if run.provenance else {}
    if parts.get("device", device_kind()) != device_kind():
        return config
    changes = {
        name: section.model_copy(update={"dtype": parts.get(f"{name}.dtype", _earlier(section))})
        for name, section in _computed_here(config)
        if section.dtype == "auto"
    }
    return config.model_copy(update=changes)


def _computed_here(config: TrainConfig) -> Iterator[tuple[str, EngineConfig | LearnerConfig]]:
    if not config.engine.urls:
        yield "engine", config.engine
    if config.learner.deployment is None:
        yield "learner", config.learner


def _earlier(section: EngineConfig | LearnerConfig) -> str:
    """Say what `auto` was to versions that did not record it: float32 on every CPU."""
    from mappa_core.models.device import resolve_device

    return "float32" if resolve_device(section.device) == "cpu" else "bfloat16"
