"""Where metrics go, as configured."""

from functools import partial
from importlib.util import find_spec

from mappa_core.core.errors import ConfigError
from mappa_core.core.settings import Settings
from mappa_core.tracking.config import TrackingConfig
from mappa_core.tracking.curves import Draw, WithCurves
from mappa_core.tracking.protocols import Tracker


def check_tracking(config: TrackingConfig, settings: Settings) -> None:
    """Refuse what could not be opened, before anything is written.

    Raises:
        ConfigError: The package or the key of Weights & Biases is missing.
    """
    if "wandb" not in config.also:
        return
    if find_spec("wandb") is None:
        raise ConfigError(
            "tracking.also=[wandb] needs the package wandb: pip install 'mappa[wandb]'"
        )
    if settings.wandb_api_key is None and settings.wandb_mode == "online":
        raise ConfigError(
            "tracking.also=[wandb] needs WANDB_API_KEY in the environment, or WANDB_MODE=offline"
        )


def with_curves(tracker: Tracker, config: TrackingConfig, settings: Settings) -> Tracker:
    """`tracker`, and the other places that the configuration names.

    Raises:
        ConfigError: As `check_tracking`.
    """
    check_tracking(config, settings)
    draw = [_draw(name, settings) for name in dict.fromkeys(config.also)]
    return WithCurves(tracker, draw) if draw else tracker


def _draw(name: str, settings: Settings) -> Draw:
    """The client's libraries take a second each to import, so only on demand."""
    if name == "wandb":
        from mappa_core.tracking.wandb import WandbCurves

        return partial(WandbCurves, settings.home / "wandb", settings.wandb_project)
    from mappa_core.tracking.tensorboard import TensorBoardCurves

    return partial(TensorBoardCurves, settings.home / "tensorboard")
