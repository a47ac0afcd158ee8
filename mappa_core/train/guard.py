"""Whether an optimizer step may be taken: figures against the bands they have to stay in."""

from collections.abc import Mapping

from mappa_core.train.config import GuardConfig

BANDS = (
    ("mismatch_kl", None, "mismatch_kl_max"),
    ("effective_sample_size", "effective_sample_size_min", None),
    ("clip_fraction", None, "clip_fraction_max"),
    ("entropy", "entropy_min", "entropy_max"),
    ("grad_norm", None, "grad_norm_max"),
)
"""Figure, key of its lower bound, key of its upper one."""


def out_of_band(figures: Mapping[str, float], guard: GuardConfig) -> str | None:
    """Why a step is not taken, in words with the key that says so; None where it may be."""
    for name, lower, upper in BANDS:
        value = figures.get(name)
        if value is None:
            continue
        least = getattr(guard, lower) if lower else None
        most = getattr(guard, upper) if upper else None
        if least is not None and value < least:
            return f"{name} {value:.4g} is below algorithm.guard.{lower}={least:g}"
        if most is not None and value > most:
            return f"{name} {value:.4g} is above algorithm.guard.{upper}={most:g}"
    return None
