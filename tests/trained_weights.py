"""Checkpoints of weights far from the base's, as a learner writes them and as others load them."""

from pathlib import Path
from typing import Literal

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import Checkpoint
from mappa_core.models.layout import WHOLE_MODEL, layout_of
from mappa_core.train import checkpoints
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners import model
from tests.adapter_files import checkpoint_in


def write_trained(
    base: Path,
    folder: Path,
    policy: PolicyVersion,
    weights: Literal["lora", "full"],
    *,
    size: float,
) -> Checkpoint:
    """Write what a learner would whose updates had moved every weight by some `size`."""
    trainee = model.load(
        base, LearnerConfig(device="cpu", dtype="float32", weights=weights), fused=True
    )
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.trained_parameters(trainee).values():
            parameter += size * torch.randn_like(parameter)
    checkpoints.write(folder, model.config(trainee, str(base)), model.tensors(trainee), {})
    return checkpoint_in(folder, policy)


def loaded_plainly(base: Path, folder: str | None) -> torch.nn.Module:
    """What peft or transformers makes of a folder of weights; None for the base model."""
    if folder is not None and layout_of(Path(folder)) is WHOLE_MODEL:
        base, folder = Path(folder), None
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    return loaded if folder is None else PeftModel.from_pretrained(loaded, folder).eval()
