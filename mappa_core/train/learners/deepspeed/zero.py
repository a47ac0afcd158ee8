"""Puts DeepSpeed's engine around the model, and names its state by parameter."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import deepspeed
import torch
from deepspeed import ops
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
)
from torch import Tensor, distributed

from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners import model, optimizer
from mappa_core.train.learners.reading import Reading
from mappa_core.train.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

WEIGHTS_STAGE = 3
"""From this stage on weights are sharded, too, and gathered only while they are used."""


class Reader(torch.nn.Module):
    """Reads a prefix tree in one forward pass, output weights included."""

    def __init__(self, trainee: model.Trainee, reading: Reading) -> None:
        """Wrap the model and how it is read; nothing is copied."""
        super().__init__()
        self.trainee, self.reading = trainee, reading

    def forward(self, tree: PrefixTree, temperature: float) -> tuple[Tensor, Tensor | None]:
        """Read log-probabilities and entropies of the response tokens, (sum of T,) each."""
        read = self.reading.read(tree, temperature)
        return read.logprobs, read.entropies


def settings(learner: LearnerConfig, *, bfloat16: bool) -> dict[str, Any]:
    """Write DeepSpeed's configuration."""
    sharded: dict[str, Any] = {"stage": learner.deepspeed.stage, "overlap_comm": False}
    if learner.deepspeed.offload:
        sharded["offload_optimizer"] = {"device": "cpu"}
        if learner.deepspeed.stage == WEIGHTS_STAGE:
            sharded["offload_param"] = {"device": "cpu"}
    chosen: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        # Micro-batches are counted by hand; more than one keeps DeepSpeed adding gradients up.
        "gradient_accumulation_steps": 2,
        "gradient_clipping": learner.gradient_clip,
        "zero_optimization": sharded,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    if bfloat16:
        chosen |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return chosen


def start_ranks(device: str) -> None:
    """Join the other ranks."""
    if device == "cpu":
        # Its shared-memory collectives take a compiler and 40 s; gloo alone gives the same sums.
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo" if device == "cpu" else "nccl", verbose=False)


def open_engine(
    reader: Reader, learner: LearnerConfig, rate: float, *, bfloat16: bool
) -> "DeepSpeedEngine":
    """Put the engine around the model's trained parameters, at AdamW's beginning."""
    parameters = model.trained_parameters(reader.trainee)
    masters: dict[str, Tensor] = {}
    if bfloat16:
        # On the CPU: a GPU may have no room for both them and what they are made from.
        masters = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
    engine, *_ = deepspeed.initialize(
        model=reader,
        optimizer=optimizer.build(parameters, {}, learner, rate),
        config=settings(learner, bfloat16=bfloat16),
    )
    if learner.deepspeed.stage == WEIGHTS_STAGE:
        # Read outside the layer that owns it, so its owner's hooks do not gather it.
        output = cast(torch.nn.Linear, model.inner(reader.trainee).get_output_embeddings()).weight
        deepspeed.zero.register_external_parameter(reader, output)
    # DeepSpeed makes its masters from weights it has rounded; small steps of earlier updates would
    # be lost with every start.
    for name, master in masters.items():
        safe_set_full_fp32_param(parameters[name], master.to(parameters[name].device))
    return engine


def restore_moments(
    engine: "DeepSpeedEngine",
    parameters: Mapping[str, torch.nn.Parameter],
    state: Mapping[str, Tensor],
) -> None:
    """Go on from the moments of an earlier update; does nothing where there are none."""
    if not state:
        return
    sharded: Any = engine.optimizer
    steps = next(tensor for name, tensor in state.items() if name.startswith("step."))
    # The shards' state exists only after a first step: make room for it as AdamW would.
    for shard in _shards(sharded):
        sharded.optimizer.state[shard] = {
            "step": steps.clone(),
            "exp_avg": torch.zeros_like(shard.data),
            "exp_avg_sq": torch.zeros_like(shard.data),
        }
    link = getattr(sharded, "_lazy_init_hp_params_optimizer_state", None)
    if link is not None:
        link()  # As its own first step does; stage 3 has nothing to link.
    for name, parameter in parameters.items():
        for moment in ("exp_avg", "exp_avg_sq"):
            value = state[f"{moment}.{name}"].to(parameter.device)
            safe_set_full_optimizer_state(parameter, value, moment)


def _shards(sharded: Any) -> Sequence[Tensor]:  # noqa: ANN401 (any of DeepSpeed's optimizers)
    """Find this rank's float32 weights, by group; each optimizer has its own name for them."""
    names = (
        "fp32_partitioned_groups_flat",  # stage 3
        "fp32_groups_flat_partition",  # stage 1 in bfloat16
        "single_partition_of_fp32_groups",  # stage 2, and stage 1 in float32
    )
    return next(getattr(sharded, name) for name in names if hasattr(sharded, name))


def weights(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, Tensor]:
    """Gather the whole float32 weights on the first rank; all ranks must call it."""
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        _keep_on_first(found, name, safe_get_full_fp32_param(parameter))
    return found


def moments(
    engine: "DeepSpeedEngine", parameters: Mapping[str, torch.nn.Parameter]
) -> dict[str, Tensor]:
    """Gather AdamW's state by moment and parameter on the first rank; all ranks must call it.

    Empty before a step.
    """
    sharded: Any = engine.optimizer
    states: Any = sharded.optimizer.state
    steps = next((one["step"] for one in states.values() if "step" in one), None)
    if steps is None:
        return {}
    found: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        _keep_on_first(found, f"step.{name}", steps)
        for moment in ("exp_avg", "exp_avg_sq"):
            value = safe_get_full_optimizer_state(parameter, moment)
            _keep_on_first(found, f"{moment}.{name}", value)
    return found


def _keep_on_first(found: dict[str, Tensor], name: str, whole: object) -> None:
    """Copy to the first rank; on every one it would take a machine's memory once for each."""
    if distributed.get_rank() == 0:
        found[name] = cast(Tensor, whole).detach().to("cpu", copy=True)
