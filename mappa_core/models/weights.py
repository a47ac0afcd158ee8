"""Weights on disk: load a base model, merge a LoRA adapter into it.

Adapters are directories in PEFT's own format (`adapter_config.json` and
`adapter_model.safetensors`).
"""

import contextlib
import json
import logging
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers.utils import logging as transformers_logging

from mappa_core.models import tensor_files
from mappa_core.models.layout import ADAPTER, WHOLE_MODEL, layout_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHOLE_FILES = "model*.safetensors"
_PEFT_PREFIX = "base_model.model."
_NOT_MERGED = ("use_dora", "fan_in_fan_out", "alpha_pattern")


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankUpdate:
    """What an adapter adds to one weight: `scale * up @ down`."""

    down: torch.Tensor
    """LoRA A, shape (r, in)."""
    up: torch.Tensor
    """LoRA B, shape (out, r)."""
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        """(out, in), of the weight it is for."""
        return (self.up.shape[0], self.down.shape[1])

    def added_to(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """`weight` of shape (out, in) with the update, computed in float32 and given as `dtype`.

        Raises:
            ValueError: It is for a weight of another shape.
        """
        if weight.shape != self.shape:
            raise ValueError(f"an update of shape {self.shape} for {tuple(weight.shape)}")
        delta = self.up.float() @ self.down.float()
        return weight.float().add(delta, alpha=self.scale).to(dtype)

    def to(self, device: torch.device) -> "LowRankUpdate":
        """This update on `device`."""
        return replace(self, down=self.down.to(device), up=self.up.to(device))


def load_base(
    path: Path | str, dtype: torch.dtype, device: torch.device | str
) -> "PreTrainedModel":
    """The causal language model at `path`, in evaluation mode.

    Raises:
        OSError: A file is missing.
        ValueError: One is damaged, or no model that transformers knows.
    """
    # A server, which only reads tensors, has no use for it.
    from transformers import AutoModelForCausalLM

    with no_progress_bars(), tensor_files.plain_errors(path):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    return model.to(device).eval()  # pyright: ignore[reportArgumentType]


@contextlib.contextmanager
def no_progress_bars() -> Generator[None]:
    """Keep transformers, and DeepSpeed behind it, from writing over the caller's own display."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    deepspeed = logging.getLogger("DeepSpeed")
    deepspeed.addFilter(_is_error)
    try:
        yield
    finally:
        deepspeed.removeFilter(_is_error)
        if shown:
            transformers_logging.enable_progress_bar()


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def read_adapter(directory: Path) -> dict[str, LowRankUpdate]:
    """A PEFT LoRA adapter's updates by the name of the weight they change.

    Raises:
        ValueError: It is damaged, or more than plain LoRA (DoRA, biases, whole modules).
        OSError: A file is missing.
    """
    config = json.loads((directory / ADAPTER.config).read_text())
    tensors = tensor_files.read(directory / ADAPTER.weights)
    updates: dict[str, LowRankUpdate] = {}
    for name in sorted(tensors):
        module, _, part = name.removeprefix(_PEFT_PREFIX).partition(".lora_")
        if part == "B.weight":
            continue
        if part != "A.weight" or any(config.get(feature) for feature in _NOT_MERGED):
            raise ValueError(f"{directory} is not a plain LoRA adapter of linear layers: {name}")
        rank = tensors[name].shape[0]
        updates[f"{module}.weight"] = LowRankUpdate(
            down=tensors[name],
            up=tensors[name.replace(".lora_A.", ".lora_B.")],
            scale=config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank),
        )
    return updates


def is_whole_model(checkpoint: Path) -> bool:
    """Whether a checkpoint holds all weights, not an adapter's."""
    return layout_of(checkpoint) is WHOLE_MODEL


class ServedWeights:
    """Reads what a server serves, tensor by tensor: whole weights, or base and merged adapter."""

    def __init__(self, base: Path | str, checkpoint: Path | None, dtype: torch.dtype) -> None:
        """Describe them; `checkpoint` None for the base as it is. Only an adapter is read.

        The server holds them as `dtype`: an adapter is merged in it, whatever type the base lies
        in, and what has no update is as in its file.

        Raises:
            ValueError: The adapter does not fit the base model, or a file is damaged.
            OSError: There are no weights, or a file is missing.
        """
        self.dtype = dtype
        whole = checkpoint is not None and is_whole_model(checkpoint)
        folder = Path(checkpoint if whole and checkpoint else base)
        self._files = sorted(folder.glob(WHOLE_FILES))
        if not self._files:
            raise FileNotFoundError(f"no {WHOLE_FILES} in {folder}")
        self._updates = {} if whole or checkpoint is None else read_adapter(checkpoint)
        there = dict(self.shapes())
        for name, update in self._updates.items():
            if there.get(name) != update.shape:
                raise ValueError(
                    f"{checkpoint} changes {name} of shape {update.shape}, and {folder} has "
                    f"{there.get(name, 'no such weight')}"
                )

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each weight's name and shape; no data is read."""
        for path in self._files:
            with tensor_files.opened(path) as file:
                for name in file.keys():  # noqa: SIM118 (not a dictionary)
                    yield name, tuple(file.get_slice(name).get_shape())

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights in the same order, on the CPU."""
        updates = dict(self._updates)
        for path in self._files:
            yield from _merged(path, updates, self.dtype)


def _merged(
    shard: Path, updates: dict[str, LowRankUpdate], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """A file's weights with what `updates` has for them, which it loses."""
    with tensor_files.opened(shard) as file:
        for name in file.keys():  # noqa: SIM118 (not a dictionary)
            update = updates.pop(name, None)
            weight = file.get_tensor(name)
            yield name, weight if update is None else update.added_to(weight, dtype)
