"""Loads what a rank trains: at stage 3 its own part of every weight, and never the whole model.

stage 1, 2   the whole base, as the torch learner's
stage 3      an empty model, partitioned layer by layer as it is built (zero.Init); then this
             rank's part of each weight is read from the files
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import deepspeed
import torch
from torch import Tensor, distributed
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.initialization import no_init_weights

from mappa_core.core.errors import LearnerError
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.models.layout import layout_of
from mappa_core.models.tensor_slices import TensorSlices
from mappa_core.models.weights import WHOLE_FILES, no_progress_bars
from mappa_core.train import checkpoints
from mappa_core.train.learners import model
from mappa_core.train.learners.deepspeed.exchange import RankTask

WEIGHTS_STAGE = 3
"""From this stage on weights are sharded, too, and gathered only while they are used."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The trained weights that a task starts from, by parameter, read whenever they are needed."""

    shapes: Mapping[str, tuple[int, ...]]
    part: Callable[[str, int, int], Tensor]
    """Takes a name, a start and a count to that part of the flattened weight, (count,)."""


def load(task: RankTask, seed: int, settings: Mapping[str, Any]) -> tuple[model.Trainee, Before]:
    """Load the model with the weights of the task's policy.

    A fresh adapter is drawn from `seed`; `settings` are DeepSpeed's. All ranks must call it.

    Raises:
        LearnerError: Weights are missing or damaged, or not this model's.
    """
    base, policy, learner = task.base_model, task.policy, task.learner
    files = _base_files(base) if learner.deepspeed.stage == WEIGHTS_STAGE else None
    if files is None:
        trainee = model.load(base, learner, fused=False)
    else:
        trainee = model.prepare(_sharded(base, files, settings), base, learner, fused=False)
    if policy.adapter_uri is not None:
        before = _of_checkpoint(trainee, Path(policy.adapter_uri))
    elif learner.weights == "lora":
        before = _drawn(trainee, base, policy, seed)
    else:
        before = _as_read(trainee, base)
    parameters = model.trained_parameters(trainee)
    if files is not None or policy.adapter_uri is not None:
        _fill(parameters, before)
    return trainee, before


def held(parameter: torch.nn.Parameter) -> tuple[int, int]:
    """Tell which part of a partitioned parameter this rank has: its start and its length."""
    sharded = cast(Any, parameter)
    size = sharded.ds_tensor.numel()
    start = min(distributed.get_rank() * size, sharded.ds_numel)
    return start, min(size, sharded.ds_numel - start)


def _base_files(base: str) -> TensorSlices | None:
    """Look up the base model's weights; None where they lie on disk in another layout."""
    try:
        slices = TensorSlices(sorted(Path(base).glob(WHOLE_FILES)))
        with torch.device("meta"), no_init_weights():
            skeleton = _empty(base)
    except (OSError, ValueError) as error:
        raise LearnerError(f"cannot read the model at {base}: {error}") from error
    skeleton.tie_weights()
    needed = {name: tuple(tensor.shape) for name, tensor in _stored(skeleton).items()}
    strange = sorted(name for name, shape in needed.items() if slices.shapes.get(name) != shape)
    if not strange:
        return slices
    _log.warning(
        "%s keeps weights on disk in another layout (%s is not there): each rank loads the whole "
        "model before it drops what it does not keep",
        type(skeleton).__name__,
        strange[0],
    )
    return None


def _empty(base: str) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(base)
    return cast(PreTrainedModel, AutoModelForCausalLM.from_config(config, dtype=torch.float32))


def _stored(built: PreTrainedModel) -> dict[str, Tensor]:
    """List what its files have of a model: parameters, tied ones once, and lasting buffers."""
    lasting = built.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in built.named_buffers() if name in lasting}
    return dict(built.named_parameters()) | buffers


def _sharded(base: str, files: TensorSlices, settings: Mapping[str, Any]) -> PreTrainedModel:
    """Build the model with this rank's part of every weight of its files, in DeepSpeed's type."""
    with (
        no_progress_bars(),
        no_init_weights(),
        deepspeed.zero.Init(config_dict_or_path=dict(settings)),
    ):
        built = _empty(base)
    built.tie_weights()
    with torch.no_grad():
        for name, tensor in _stored(built).items():
            if hasattr(tensor, "ds_tensor"):
                _keep_part(cast(torch.nn.Parameter, tensor), name, files.part)
            else:
                tensor.copy_(files.whole(name))
    return built.eval()


def _fill(parameters: Mapping[str, torch.nn.Parameter], before: Before) -> None:
    """Put weights into the parameters, or this rank's part of them."""
    with torch.no_grad():
        for name, parameter in parameters.items():
            if hasattr(parameter, "ds_tensor"):
                _keep_part(parameter, name, before.part)
            else:
                whole = before.part(name, 0, parameter.numel())
                parameter.copy_(whole.view(parameter.shape))


def _keep_part(
    parameter: torch.nn.Parameter, name: str, part: Callable[[str, int, int], Tensor]
) -> None:
    start, count = held(parameter)
    cast(Any, parameter).ds_tensor[:count].copy_(part(name, start, count))


def _of_checkpoint(trainee: model.Trainee, directory: Path) -> Before:
    # Reading all of it for its hash is the first rank's; the others wait for it in a collective.
    if distributed.get_rank() == 0:
        checkpoints.verify(directory)
    distributed.barrier()
    slices = TensorSlices([directory / layout_of(directory).weights])
    names = model.file_names(trainee)
    shapes = _shapes(model.trained_parameters(trainee))
    if slices.shapes != {names[name]: shape for name, shape in shapes.items()}:
        raise LearnerError(
            f"checkpoint {directory} does not fit: its layers or rank are not those of "
            "learner.weights and learner.lora"
        )
    return Before(
        shapes=shapes, part=lambda name, start, count: slices.part(names[name], start, count)
    )


def _as_read(trainee: model.Trainee, base: str) -> Before:
    """Take the base model's own weights, which are in the model."""
    slices = TensorSlices(sorted(Path(base).glob(WHOLE_FILES)))
    return Before(shapes=_shapes(model.trained_parameters(trainee)), part=slices.part)


def _drawn(trainee: model.Trainee, base: str, policy: PolicyVersion, seed: int) -> Before:
    """Draw a fresh adapter into the model."""
    model.restore(trainee, base, policy, seed)
    parameters = model.trained_parameters(trainee)
    drawn = {name: p.detach().to("cpu", copy=True).view(-1) for name, p in parameters.items()}
    return Before(
        shapes=_shapes(parameters),
        part=lambda name, start, count: drawn[name][start : start + count],
    )


def _shapes(parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in parameters.items()}


def file_order(names: Mapping[str, str]) -> Sequence[str]:
    """Sort parameters as their tensors lie in a file."""
    return sorted(names, key=names.__getitem__)
