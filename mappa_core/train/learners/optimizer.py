"""AdamW whose state travels as named tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from mappa_core.train.config import LearnerConfig

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def build(
    parameters: Mapping[str, Parameter], state: Mapping[str, Tensor], learner: LearnerConfig
) -> torch.optim.AdamW:
    """AdamW (arXiv 1711.05101) over the named parameters, going on from `state`.

    Args:
        parameters: What is trained.
        state: `<moment>.<parameter>` tensors of `state_of`; empty for a fresh start.
        learner: Moments' decay and weight decay; the learning rate is set before each step.
    """
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=learner.learning_rate,
        betas=learner.betas,
        weight_decay=learner.weight_decay,
    )
    for name, parameter in parameters.items() if state else ():
        moments = {moment: state[f"{moment}.{name}"] for moment in MOMENTS}
        optimizer.state[parameter] = {
            key: tensor if key == "step" else tensor.to(parameter.device)
            for key, tensor in moments.items()
        }
    return optimizer


def state_of(
    parameters: Mapping[str, Parameter], optimizer: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """The optimiser's tensors by moment and parameter, on the CPU; empty before its first step."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment].detach().cpu()
        for name, parameter in parameters.items()
        if parameter in optimizer.state
        for moment in MOMENTS
    }
