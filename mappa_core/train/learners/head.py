"""Reads tokens' log-probabilities off hidden states, as the model's own forward does.

After its output layer a model may scale its logits (Granite, Cohere) or cap them (Gemma 2). What it
does is asked, not listed: its own `forward` is run with given logits in the place of its output
layer's, and what it returns is what it makes of them.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from mappa_core.core.errors import LearnerError
from mappa_core.train.token_logprobs import (
    TokenLogprobs,
    WeightGradient,
    capped_logprobs,
    token_logprobs,
)

LINEAR = 1e-6
"""Largest deviation from a multiple, over the largest logit, at which logits are taken for one."""


class _Given:
    """Stands for a part of the model: gives `value` when called, and is that part otherwise."""

    def __init__(self, part: torch.nn.Module, value: object) -> None:
        self._part, self._value = part, value

    def __call__(self, *_: object, **__: object) -> object:
        return self._value

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._part, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputHead:
    """A model's output layer, and what its forward does after it."""

    base: PreTrainedModel
    decoded: object
    """What its decoder says of one token, so that the rest of its forward can be run."""
    factor: float | None
    """Of the logits, where nothing else is done to them; None where more is."""
    products: torch.dtype = torch.float32
    """Type of the quick way's products that are of the gradient alone; logits are float32."""
    gradient: WeightGradient | None = None
    """Takes that of a trained output layer, where the quick way is taken; None for autograd."""

    def read(
        self, states: Tensor, rows: Tensor, token_ids: Tensor, temperature: float
    ) -> TokenLogprobs:
        """Read tokens off (M, D) states; all arguments are as in `token_logprobs`.

        Where logits are multiples of the output layer's this takes the quick way.
        """
        layer = cast(torch.nn.Linear, self.base.get_output_embeddings())
        if self.factor is not None and cast(Tensor | None, layer.bias) is None:
            # Logits times the factor over the temperature: both are one temperature.
            one = temperature / self.factor
            return token_logprobs(
                states, layer.weight, rows, token_ids, one, self.products, self.gradient
            )

        def logits_of(hidden: Tensor) -> Tensor:
            return self._logits(hidden) / temperature

        return capped_logprobs(logits_of, states, rows, token_ids)

    def after(self, logits: Tensor) -> Tensor:
        """Have the model's forward do what it does to its output layer's logits, (R, V)."""
        # A copy with two parts exchanged: the model itself stays as it is.
        model = copy.copy(self.base)
        layer = self.base.get_output_embeddings()
        for name, part in self.base.named_children():
            given = logits[None] if part is layer else self.decoded
            vars(model)[name] = _Given(part, given)
        token = torch.zeros((1, 1), dtype=torch.int64, device=logits.device)
        # The instance's own hooks (DeepSpeed's) are for passes through the whole model.
        return type(model).forward(model, input_ids=token, use_cache=False).logits[0]

    def _logits(self, states: Tensor) -> Tensor:
        layer = cast(torch.nn.Linear, self.base.get_output_embeddings())
        logits = functional.linear(states, layer.weight.float())
        bias = cast(Tensor | None, layer.bias)
        return self.after(logits if bias is None else logits + bias.float())


def decoder_of(base: PreTrainedModel) -> PreTrainedModel:
    """Find the part that makes hidden states, below the output layer."""
    return next(part for part in base.children() if isinstance(part, PreTrainedModel))


def head_of(base: PreTrainedModel, products: torch.dtype = torch.float32) -> OutputHead:
    """Look at what the model does after its output layer.

    Raises:
        LearnerError: It has none that this learner could read.
    """
    layer, parts = base.get_output_embeddings(), tuple(base.children())
    decoders = sum(isinstance(part, PreTrainedModel) for part in parts)
    if decoders != 1 or not hasattr(layer, "weight") or all(part is not layer for part in parts):
        raise LearnerError(
            f"{type(base).__name__} has no output layer of its own on top of its decoder, so its "
            "log-probs cannot be read: choose another model"
        )
    rounds = torch.autocast(base.device.type, torch.bfloat16, products is torch.bfloat16)
    with torch.no_grad(), rounds:
        token = torch.zeros((1, 1), dtype=torch.int64, device=base.device)
        decoded = decoder_of(base)(input_ids=token, use_cache=False)
        head = OutputHead(base=base, decoded=decoded, factor=None, products=products)
        return replace(head, factor=_factor(head))


def _factor(head: OutputHead) -> float | None:
    """Find what logits are multiplied by; None where they are changed in another way."""
    width = len(cast(torch.nn.Linear, head.base.get_output_embeddings()).weight)
    given = torch.linspace(-50, 50, width, dtype=torch.float32, device=head.base.device)
    made = head.after(given[None])[0]
    if made.shape != given.shape:
        return None
    factor = float(made.double() @ given.double() / (given.double() @ given.double()))
    off = float((made - factor * given).abs().max())
    if factor <= 0 or off > LINEAR * float(made.abs().max()):
        return None
    return 1.0 if abs(factor - 1) < LINEAR else factor
