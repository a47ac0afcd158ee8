"""Which device a configuration means; apart from the rest, because torch alone imports quickly."""

import torch

from mappa_core.domain.errors import ConfigError


def resolve_device(device: str) -> str:
    """`cuda` where `auto` finds a GPU, otherwise `cpu`; anything else as it is.

    Raises:
        ConfigError: `cuda` is asked for by name and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda, and torch sees no GPU here: set it to cpu or auto")
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"
