"""The two kinds of trained weights on disk, by the files that other programs load."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What loads a directory of weights, and the files it reads."""

    library: Literal["peft", "transformers"]
    config: str
    weights: str


ADAPTER = Layout(library="peft", config="adapter_config.json", weights="adapter_model.safetensors")
MANIFEST = "manifest.json"
"""Has the hashes of a checkpoint's other files."""
WHOLE_MODEL = Layout(library="transformers", config="config.json", weights="model.safetensors")


def layout_of(checkpoint: Path) -> Layout:
    """Which of the two a checkpoint has; where nothing is there, an adapter's."""
    return WHOLE_MODEL if (checkpoint / WHOLE_MODEL.config).exists() else ADAPTER
