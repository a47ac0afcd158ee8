"""PEFT's LoRA layer with its products as one operation."""

from typing import Any, cast

import torch
from peft import LoraConfig
from peft.tuners import lora
from torch import Tensor

from mappa_core.train.learners.lora_linear import lora_linear


class FusedLinear(lora.Linear):
    """One adapter without dropout on a frozen layer, all of one dtype."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: ANN401
        """(..., I) in, (..., O) out; what PEFT computes, to rounding."""
        if self.disable_adapters or self.merged:
            return super().forward(x, *args, **kwargs)
        (name,) = self.active_adapters
        base = cast(torch.nn.Linear, self.get_base_layer())
        down, up = (cast(torch.nn.Linear, part[name]) for part in (self.lora_A, self.lora_B))
        return lora_linear(x, base.weight, base.bias, down.weight, up.weight, self.scaling[name])


def fuse(config: LoraConfig) -> None:
    """Have the adapters that are made from `config` compute so."""
    # PEFT documents this way of bringing a layer, under a private name.
    config._register_custom_module({torch.nn.Linear: FusedLinear})  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
