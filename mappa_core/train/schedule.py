"""The learning rate as a function of the step alone: a resumed run needs no memory of it."""

import math


def cosine(
    step: int, total_steps: int, *, peak: float, warmup_fraction: float, final_fraction: float
) -> float:
    """Linear warm-up to `peak`, then half a cosine down to `final_fraction` of it.

    lr = peak (f + (1 - f) (1 + cos(pi p)) / 2), p from 0 after the warm-up to 1 at the last step
    (SGDR, arXiv 1608.03983, eq. 5, one period).

    Args:
        step: From 0; steps past the end stay at the final rate.
        total_steps: Of the whole run, >= 1.
        peak: Highest rate.
        warmup_fraction: Share of the steps that rise; the first of them is above 0.
        final_fraction: Last rate over `peak`.
    """
    warmup_steps = math.ceil(warmup_fraction * total_steps)
    if step < warmup_steps:
        return peak * (step + 1) / (warmup_steps + 1)
    falling_steps = max(total_steps - 1 - warmup_steps, 1)
    progress = min((step - warmup_steps) / falling_steps, 1.0)
    return peak * (final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * progress)) / 2)
