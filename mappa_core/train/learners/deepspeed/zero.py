"""Puts DeepSpeed's engine around the model, and names its state by parameter."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import deepspeed
import torch
from deepspeed import ops
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor, distributed

from mappa_core.core import heap
from mappa_core.models.tensor_slices import StreamedTensors, TensorSlices
from mappa_core.train.config import DeepspeedConfig, LearnerConfig
from mappa_core.train.learner_memory import WHOLE_AT_ONCE
from mappa_core.train.learners import model, optimizer
from mappa_core.train.learners.deepspeed.loading import (
    WEIGHTS_STAGE,
    Before,
    file_order,
    held,
)

if TYPE_CHECKING:
    from deepspeed.runtime.engine import DeepSpeedEngine

T = TypeVar("T")


class Reader(torch.nn.Module):
    """Lets DeepSpeed see every use of the model, so that it gathers what is partitioned."""

    def __init__(self, trainee: model.Trainee) -> None:
        """Wrap the model; nothing is copied."""
        super().__init__()
        self.trainee = trainee

    def forward(self, read: Callable[[], T]) -> T:
        """Do what reads the model, output weights included."""
        return read()


def holds_bfloat16(deepspeed: DeepspeedConfig, device: str) -> bool:
    """Tell whether ranks hold weights in bfloat16 beside their masters, which auto does on a GPU.

    On a CPU that would round all that layers hand on, which `learner.dtype` does not.
    """
    return device != "cpu" if deepspeed.dtype == "auto" else deepspeed.dtype == "bfloat16"


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


def bounded(chosen: dict[str, Any], weights: int) -> dict[str, Any]:
    """Bound what is gathered and reduced at once by a part of the model's `weights`.

    DeepSpeed's own bounds are numbers (1e9 weights gathered, 5e8 gradients in a bucket), below
    which a whole model stays on each rank at stage 3. Of a larger model they stay the bounds.
    """
    part = max(1, weights // WHOLE_AT_ONCE)
    sharded = chosen["zero_optimization"] | {"reduce_bucket_size": min(part, 5 * 10**8)}
    if sharded["stage"] == WEIGHTS_STAGE:
        gathered = min(part, 10**9)
        sharded |= {"stage3_max_live_parameters": gathered, "stage3_max_reuse_distance": gathered}
        sharded |= {"stage3_prefetch_bucket_size": min(part, 5 * 10**7), "sub_group_size": part}
    return chosen | {"zero_optimization": sharded}


def start_ranks(device: str) -> None:
    """Join the other ranks, on a GPU of this rank's own; before anything is loaded there."""
    if device == "cpu":
        # Its shared-memory collectives take a compiler and 40 s; gloo alone gives the same sums.
        ops.__compatible_ops__["deepspeed_shm_comm"] = False
        heap.return_what_is_freed()
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(dist_backend="gloo" if device == "cpu" else "nccl", verbose=False)


def open_engine(
    reader: Reader, learner: LearnerConfig, before: Before, rate: float | None, *, bfloat16: bool
) -> "DeepSpeedEngine":
    """Put the engine around the model's trained parameters, at AdamW's beginning.

    With `rate` None it only reads, at stage 3, and has no optimizer.
    """
    parameters = model.trained_parameters(reader.trainee)
    if bfloat16:
        cast_parameters(reader)
    engine, *_ = deepspeed.initialize(
        model=reader,
        optimizer=None if rate is None else optimizer.build(parameters, {}, learner, rate),
        config=bounded(settings(learner, bfloat16=bfloat16), _count(reader)),
    )
    if learner.deepspeed.stage == WEIGHTS_STAGE:
        # Read outside the layer that owns it, so its owner's hooks do not gather it.
        output = cast(torch.nn.Linear, model.inner(reader.trainee).get_output_embeddings()).weight
        deepspeed.zero.register_external_parameter(reader, output)
    if bfloat16 and rate is not None:
        # DeepSpeed makes its masters from weights it has rounded; small steps of earlier updates
        # would be lost with every start.
        for name, parameter in parameters.items():
            _set(parameter, before.shapes[name], None, _part_of(before.part, name))
    return engine


def release(engine: "DeepSpeedEngine") -> None:
    """End the engine and empty its tensors.

    DeepSpeed 0.19.8 leaves references to a destroyed engine, so that the state of every update
    would stay in ranks that live on.
    """
    engine.destroy()
    sharded: Any = engine.optimizer
    parameters: list[Any] = list(engine.parameters())
    if hasattr(sharded, "optimizer"):
        sharded.optimizer.state.clear()
    for tensor in _tensors([parameters, [vars(one) for one in parameters], vars(sharded)]):
        tensor.grad = None
        tensor.data = tensor.new_empty(0)


def _tensors(tree: object) -> Iterator[Tensor]:
    """Find the tensors in lists and mappings, at any depth."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple | set | deque):
        values = cast("dict[object, object]", tree).values() if isinstance(tree, dict) else tree
        for one in list(cast("Iterable[object]", values)):
            yield from _tensors(one)


def _count(reader: Reader) -> int:
    """Count all weights, those of other ranks too."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in reader.parameters())


def cast_parameters(reader: Reader) -> None:
    """Round the weights to bfloat16, those that are partitioned already apart."""
    for parameter in reader.parameters():
        if parameter.dtype is torch.float32 and not hasattr(parameter, "ds_tensor"):
            parameter.data = parameter.data.to(torch.bfloat16)


def restore_moments(
    engine: "DeepSpeedEngine",
    parameters: Mapping[str, torch.nn.Parameter],
    state: TensorSlices | None,
) -> None:
    """Go on from the moments of an earlier update; does nothing where there are none."""
    if state is None or not state.shapes:
        return
    sharded: Any = engine.optimizer
    steps = state.whole(f"step.{next(iter(parameters))}")
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
            stored = f"{moment}.{name}"
            _set(parameter, state.shapes[stored], moment, _part_of(state.part, stored))


Part = Callable[[int, int], Tensor]
"""Takes a start and a count to that part of a flattened tensor."""


def _part_of(part: Callable[[str, int, int], Tensor], name: str) -> Part:
    return lambda start, count: part(name, start, count)


def _set(
    parameter: torch.nn.Parameter, shape: tuple[int, ...], moment: str | None, part: Part
) -> None:
    """Set a parameter's float32 master, or a moment: of a partitioned one this rank's part."""
    if hasattr(parameter, "ds_tensor"):
        value = torch.zeros(cast(Any, parameter).ds_tensor.numel())
        start, count = held(parameter)
        value[:count] = part(start, count)
        if moment is None:
            safe_set_local_fp32_param(parameter, value)
        else:
            safe_set_local_optimizer_state(parameter, value, moment)
        return
    whole = part(0, parameter.numel()).view(shape).float().to(parameter.device)
    if moment is None:
        safe_set_full_fp32_param(parameter, whole)
    else:
        safe_set_full_optimizer_state(parameter, whole, moment)


def _shards(sharded: Any) -> Sequence[Tensor]:  # noqa: ANN401 (any of DeepSpeed's optimizers)
    """Find this rank's float32 weights, by group; each optimizer has its own name for them."""
    names = (
        "fp32_partitioned_groups_flat",  # stage 3
        "fp32_groups_flat_partition",  # stage 1 in bfloat16
        "single_partition_of_fp32_groups",  # stage 2, and stage 1 in float32
    )
    return next(getattr(sharded, name) for name in names if hasattr(sharded, name))


def weights(
    parameters: Mapping[str, torch.nn.Parameter], names: Mapping[str, str], before: Before
) -> StreamedTensors:
    """Gather the float32 weights one by one, by their names in files; all ranks must take all."""

    def gathered() -> Iterator[Tensor]:
        for name in file_order(names):
            yield _on_cpu(safe_get_full_fp32_param(parameters[name]))

    shapes = {names[name]: shape for name, shape in before.shapes.items()}
    return StreamedTensors(shapes=shapes, tensors=gathered())


def moments(
    engine: "DeepSpeedEngine", parameters: Mapping[str, torch.nn.Parameter], before: Before
) -> StreamedTensors:
    """Gather AdamW's state by moment and parameter, one by one; all ranks must take all.

    Called after a step.
    """
    sharded: Any = engine.optimizer
    states: Any = sharded.optimizer.state
    steps: Tensor = next(one["step"] for one in states.values() if "step" in one)
    wanted = {
        f"{moment}.{name}": (moment, name) for moment in optimizer.MOMENTS for name in parameters
    }

    def gathered() -> Iterator[Tensor]:
        for stored in sorted(wanted):
            moment, name = wanted[stored]
            state = steps
            if moment != "step":
                state = safe_get_full_optimizer_state(parameters[name], moment)
            yield _on_cpu(state)

    shapes = {
        stored: tuple(steps.shape) if moment == "step" else before.shapes[name]
        for stored, (moment, name) in wanted.items()
    }
    return StreamedTensors(shapes=shapes, tensors=gathered())


def _on_cpu(whole: object) -> Tensor:
    """Take the tensor to the CPU on the first rank, which writes it; the others drop it."""
    tensor = cast(Tensor, whole).detach()
    return tensor.to("cpu", torch.float32) if distributed.get_rank() == 0 else tensor
