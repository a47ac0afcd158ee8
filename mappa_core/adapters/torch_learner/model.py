"""One frozen base model with one set of LoRA modules that agents' weights are copied into."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model, get_peft_model_state_dict
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from mappa_core.adapters.huggingface.weights import load_base, resolve_device
from mappa_core.config import LoraConfig
from mappa_core.learning.prefix_tree import PrefixTree
from mappa_core.learning.token_logprobs import TokenLogprobs, token_logprobs
from mappa_core.learning.tree_attention import AttentionPlan, attend, plan

ATTENTION = "mappa_prefix_tree"
ADAPTER = "default"


def _tree_attention(
    _module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    *,
    tree: AttentionPlan,
    scaling: float | None = None,
    **_: Any,  # noqa: ANN401
) -> tuple[Tensor, None]:
    """The attention interface of transformers: (1, H, N, D) in, (1, N, H, D) out."""
    return attend(query, key, value, tree, scaling).transpose(1, 2).contiguous(), None


def load(base: Path | str, lora: LoraConfig, device: str) -> PeftModel:
    """The base model with LoRA on every linear layer but the output, reading prefix trees only.

    Weights are float32 on a CPU and bfloat16 on a GPU; the adapter is float32 on both.
    """
    device = resolve_device(device)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    AttentionInterface.register(ATTENTION, _tree_attention)
    model = load_base(base, dtype, device)
    model.set_attn_implementation(ATTENTION)
    config = PeftLoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(base),
    )
    return cast(PeftModel, get_peft_model(model, config))


def read(model: PeftModel, tree: PrefixTree) -> TokenLogprobs:
    """Log-probability and entropy of every response token of the tree's sequences, (sum of T,)."""
    base = cast(PreTrainedModel, model.get_base_model())
    tree = tree.to(base.device)
    with torch.autocast(base.device.type, torch.bfloat16, enabled=base.device.type == "cuda"):
        states = base.base_model(
            input_ids=tree.token_ids[None],
            position_ids=tree.depths[None],
            use_cache=False,
            tree=plan(tree.ends),
        ).last_hidden_state[0]
    edges = token_logprobs(
        states[tree.predictors],
        cast(torch.nn.Linear, base.get_output_embeddings()).weight,
        tree.edge_predictors,
        tree.edge_tokens,
    )
    entropies = None if edges.entropies is None else edges.entropies[tree.reads]
    return TokenLogprobs(logprobs=edges.logprobs[tree.reads], entropies=entropies)


def adapter_parameters(model: PeftModel) -> dict[str, torch.nn.Parameter]:
    """The trainable weights by name, in the model's own order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def reset_adapter(model: PeftModel, seed: int) -> None:
    """A fresh adapter: B zero, so that the policy is the base model; A drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in adapter_parameters(model).items():
        # Drawn on the CPU, so that every device starts from the same numbers.
        fresh = torch.zeros(parameter.shape)
        if ".lora_A." in name:
            torch.nn.init.kaiming_uniform_(fresh, a=5**0.5, generator=generator)
        parameter.data.copy_(fresh)


def adapter_tensors(model: PeftModel) -> dict[str, Tensor]:
    """The adapter under the names of PEFT's files, on the CPU."""
    state = cast(Mapping[str, Tensor], get_peft_model_state_dict(model))
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}


def copy_adapter(model: PeftModel, tensors: Mapping[str, Tensor]) -> None:
    """Put an adapter's tensors into the model.

    Raises:
        ValueError: They are not this model's adapter: other names or shapes.
    """
    state = cast(Mapping[str, Tensor], get_peft_model_state_dict(model))
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise ValueError("the adapter's layers or rank are not those of learner.lora")
    with torch.no_grad():
        for name, tensor in state.items():
            tensor.copy_(tensors[name])


def adapter_config(model: PeftModel, base_model: str) -> dict[str, Any]:
    """The contents of `adapter_config.json`, the same in every process."""
    values = cast(PeftLoraConfig, model.peft_config[ADAPTER]).to_dict()
    values |= {"base_model_name_or_path": base_model, "inference_mode": True}
    return {key: _ordered(value) for key, value in values.items()}


def _ordered(value: object) -> object:
    """Sets come in another order in every process."""
    if isinstance(value, set | list | tuple):
        return sorted(cast(Sequence[str], value))
    return value
