"""Builds AdamW, whose state travels as named tensors and whose rate is a function of the step."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Parameter

from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.train import checkpoints
from mappa_core.train.config import LearnerConfig

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def build(
    parameters: Mapping[str, Parameter],
    state: Mapping[str, Tensor],
    learner: LearnerConfig,
    rate: float,
) -> torch.optim.AdamW:
    """Build AdamW (arXiv 1711.05101) over the named parameters.

    It goes on from `state`, the `<moment>.<parameter>` tensors of `state_of`; empty for a fresh
    start.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in parameters.values())
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=rate,
        betas=learner.betas,
        weight_decay=learner.weight_decay,
        # In one pass over each tensor; torch's own choice for a CPU makes two more as large.
        fused=True if on_cpu else None,
    )
    for name, parameter in parameters.items() if state else ():
        moments = {moment: state[f"{moment}.{name}"] for moment in MOMENTS}
        optimizer.state[parameter] = {
            key: tensor if key == "step" else tensor.to(parameter.device)
            for key, tensor in moments.items()
        }
    return optimizer


def state_before(policy: PolicyVersion) -> dict[str, Tensor]:
    """Read the optimiser's tensors that a policy's checkpoint has; the base model has none.

    Raises:
        LearnerError: The file is missing or damaged.
    """
    if policy.adapter_uri is None:
        return {}
    return checkpoints.read_optimizer(Path(policy.adapter_uri))


def state_of(
    parameters: Mapping[str, Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Copy the optimiser's tensors to the CPU, by moment and parameter; none before a step."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment].detach().cpu()
        for name, parameter in parameters.items()
        if parameter in optimizer.state
        for moment in MOMENTS
    }


def learning_rate(learner: LearnerConfig, step: int, total_steps: int) -> float:
    """Warm up linearly to the peak, then fall by half a cosine to the final share of it.

    lr = peak (f + (1 - f) (1 + cos(pi p)) / 2), p from 0 after the warm-up to 1 at the last step
    (SGDR, arXiv 1608.03983, eq. 5, one period). A resumed run needs no memory of it.

    Args:
        learner: Peak, share of the steps that rise (the first is above 0) and final share f.
        step: Updates the policy has had, from 0; past the end the final rate stays.
        total_steps: Of the whole run, >= 1.
    """
    peak, final = learner.learning_rate, learner.final_fraction
    warmup_steps = math.ceil(learner.warmup_fraction * total_steps)
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    falling_steps = max(total_steps - 1 - warmup_steps, 1)
    progress = min((step - warmup_steps) / falling_steps, 1.0)
    return peak * (final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2)
