"""From a coach's score to what each token is worth (REINFORCE++, arXiv 2501.03262).

One action is one unit of credit: it gets its own coach score and nothing of its neighbours'.
"""

import torch
from torch import Tensor

SCORE_SCALE = 10.0
"""Coach scores lie in [0, 10]; rewards in [0, 1], so one KL coefficient fits every team."""


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Per-token estimate of KL(pi || pi_ref): log pi - log pi_ref. Unbiased, may be negative.

    J. Schulman, "Approximating KL divergence", 2020. Shapes (T,) -> (T,).
    """
    return logprobs - reference


def returns_to_go(rewards: Tensor) -> Tensor:
    """Undiscounted sum of this token's and all later rewards: G_t = sum_{s >= t} r_s; (T,)."""
    return torch.flip(torch.cumsum(torch.flip(rewards, (0,)), 0), (0,))
