"""Loads the model that is trained: a frozen base with one LoRA adapter, or all of its weights.

One object serves all agents: their weights are copied into it. How it reads is `reading`'s.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model, get_peft_model_state_dict
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from mappa_core.core.errors import LearnerError
from mappa_core.core.ids import derive_seed
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.models.device import resolve_device, resolve_dtype
from mappa_core.models.weights import ServedWeights, load_base
from mappa_core.train import checkpoints
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.lora import fuse, fuse_gated
from mappa_core.train.learners.rms_norm import fuse_norms

ADAPTER = "default"

Trainee: TypeAlias = PeftModel | PreTrainedModel


def load(base: Path | str, learner: LearnerConfig, *, fused: bool) -> Trainee:
    """Load the model at `base`, where LoRA is trained with it on its decoder's linear layers.

    What is trained is float32 on every device; a frozen base is of `learner.dtype`, on a
    CPU its linear layers alone. With `fused`,
    on a CPU, each layer computes with its adapter in one operation. That passes the adapter's own
    layers by, on whose calls ZeRO gathers what it has partitioned.

    Raises:
        ConfigError: `learner.device` is cuda and there is no GPU.
        LearnerError: The model cannot be read, or what would be trained of it not be served.
    """
    device = resolve_device(learner.device)
    full = learner.weights == "full"
    dtype = torch.float32 if full else resolve_dtype(learner.dtype, device)
    try:
        model = load_base(base, torch.float32 if device == "cpu" else dtype, device)
    except (OSError, ValueError) as error:
        raise LearnerError(f"cannot read the model at {base}: {error}") from error
    if dtype is torch.bfloat16 and device == "cpu":
        # What layers hand on stays float32: rounded after each, a gradient's cosine is 0.994.
        for name in _linear_layers(model):
            model.get_submodule(name).to(dtype)
    return prepare(model, base, learner, fused=fused and device == "cpu")


def prepare(
    model: PreTrainedModel, base: Path | str, learner: LearnerConfig, *, fused: bool
) -> Trainee:
    """Make what is trained of the model that was read from `base`; as `load`."""
    if learner.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        # Layers are computed twice in training mode only. What is in them stays in evaluation mode:
        # dropout or a router's noise would be another policy than the one that sampled.
        for layer in model.modules():
            layer.training = isinstance(layer, GradientCheckpointingLayer)
    if fused:
        fuse_norms(model)
    if learner.weights == "lora":
        return _with_adapter(model, base, learner, fused=fused)
    _refuse_other_names(model, base)
    return model


def _refuse_other_names(model: PreTrainedModel, base: Path | str) -> None:
    """Refuse weights that are called otherwise on disk: a server reads them by those names."""
    there = {name for name, _ in ServedWeights(base, None, torch.float32).shapes()}
    strange = sorted(name for name, _ in model.named_parameters() if name not in there)
    if strange:
        raise LearnerError(
            f"{type(model).__name__} keeps weights on disk in another layout ({strange[0]} is not "
            "there), so no server could load whole weights: set learner.weights=lora"
        )


def _linear_layers(model: PreTrainedModel) -> list[str]:
    """Name what an adapter goes on: linear layers of the decoder, not of what sees or routes.

    A router may be made of a linear layer, and gives something else.
    """
    inside = {id(part) for part in model.get_decoder().modules()}
    inside.discard(id(model.get_output_embeddings()))
    return [
        name
        for name, part in model.named_modules()
        if type(part) is torch.nn.Linear and id(part) in inside
    ]


def _with_adapter(
    model: PreTrainedModel, base: Path | str, learner: LearnerConfig, *, fused: bool
) -> PeftModel:
    if learner.gradient_checkpointing:
        model.enable_input_require_grads()
    layers = _linear_layers(model)
    if not layers:
        raise LearnerError(
            f"{type(model).__name__} has no plain linear layers for an adapter: "
            "set learner.weights=full"
        )
    config = PeftLoraConfig(
        r=learner.lora.rank,
        lora_alpha=learner.lora.alpha,
        target_modules=layers,
        task_type="CAUSAL_LM",
        base_model_name_or_path=str(base),
    )
    if fused:
        fuse(config)
    try:
        with warnings.catch_warnings():
            # Of parameters that it did not find: what it was to adapt is looked at below.
            warnings.simplefilter("ignore", RuntimeWarning)
            adapted = cast(PeftModel, get_peft_model(model, config))
            if fused:
                fuse_gated(adapted)
    except ValueError as error:
        raise LearnerError(f"no adapter for {type(model).__name__}: {error}") from error
    if config.target_parameters or config.alpha_pattern:
        raise LearnerError(
            f"peft would adapt {type(model).__name__}'s fused experts, which cannot be merged: "
            "choose another model"
        )
    return adapted


def inner(model: Trainee) -> PreTrainedModel:
    """Unwrap the model from its adapter."""
    return cast(PreTrainedModel, model.get_base_model()) if isinstance(model, PeftModel) else model


def trained_parameters(model: Trainee) -> dict[str, torch.nn.Parameter]:
    """List the trainable weights by name, in the model's own order; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def layers_to_round(model: Trainee, products: torch.dtype) -> tuple[torch.nn.Linear, ...]:
    """List layers whose trained float32 weights a CPU rounds for its products; none elsewhere."""
    base = inner(model)
    if isinstance(model, PeftModel) or base.device.type != "cpu" or products is torch.float32:
        return ()
    layers = (base.get_submodule(name) for name in _linear_layers(base))
    return tuple(cast(torch.nn.Linear, layer) for layer in layers)


def restore(model: Trainee, base: Path | str, policy: PolicyVersion, seed: int) -> None:
    """Put a policy's weights into the model; `seed`, with the agent's name, draws a fresh adapter.

    Raises:
        LearnerError: A file is missing or damaged, or they are not this model's.
    """
    if policy.adapter_uri is None:
        reset(model, base, derive_seed("lora", seed, policy.agent))
        return
    directory = Path(policy.adapter_uri)
    try:
        copy_tensors(model, checkpoints.read_weights(directory))
    except ValueError as error:
        raise LearnerError(f"checkpoint {directory} does not fit: {error}") from error


def reset(model: Trainee, base: Path | str, seed: int) -> None:
    """Make the policy the base model again.

    A fresh adapter has B zero and A drawn from `seed`.
    """
    if not isinstance(model, PeftModel):
        with torch.no_grad():
            fresh = dict(load_base(base, torch.float32, "cpu").named_parameters())
            for name, parameter in model.named_parameters():
                parameter.copy_(fresh[name])
        return
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in trained_parameters(model).items():
        # Drawn on the CPU, so that every device starts from the same numbers.
        fresh = torch.zeros(parameter.shape)
        if ".lora_A." in name:
            torch.nn.init.kaiming_uniform_(fresh, a=5**0.5, generator=generator)
        parameter.data.copy_(fresh)


def tensors(model: Trainee) -> dict[str, Tensor]:
    """Copy the trained weights under the names of PEFT's or transformers' files, on the CPU."""
    return {name: t.detach().cpu().contiguous() for name, t in _named(model).items()}


def file_names(model: Trainee) -> dict[str, str]:
    """Name each trained parameter as in the files."""
    return {name: name.replace(f".{ADAPTER}.", ".") for name in trained_parameters(model)}


def copy_tensors(model: Trainee, given: Mapping[str, Tensor]) -> None:
    """Put an agent's weights into the model.

    Raises:
        ValueError: They are not this model's: other names or shapes.
    """
    mine = _named(model)
    shapes = {name: tuple(tensor.shape) for name, tensor in mine.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in given.items()}:
        raise ValueError("its layers or rank are not those of learner.weights and learner.lora")
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(given[name])


def config(model: Trainee, base_model: str) -> dict[str, Any]:
    """Write the contents of the weights' configuration file, the same in every process."""
    if not isinstance(model, PeftModel):
        return json.loads(model.config.to_json_string())
    values = cast(PeftLoraConfig, model.peft_config[ADAPTER]).to_dict()
    values |= {"base_model_name_or_path": base_model, "inference_mode": True}
    return {key: _ordered(value) for key, value in values.items()}


def _named(model: Trainee) -> Mapping[str, Tensor]:
    if isinstance(model, PeftModel):
        return cast(Mapping[str, Tensor], get_peft_model_state_dict(model))
    return dict(model.named_parameters())


def _ordered(value: object) -> object:
    """Sort sets, which come in another order in every process."""
    if isinstance(value, set | list | tuple):
        return sorted(cast(Sequence[str], value))
    return value
