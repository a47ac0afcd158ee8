"""How a run is measured."""

from pydantic import Field

from mappa_core.core.section import Positive, Section


class EvaluationConfig(Section):
    """How policies are measured on held-out problems."""

    temperature: float = Field(
        default=0.6, ge=0, le=2, description="Sampling temperature; 0 is greedy."
    )
    samples: Positive = Field(default=1, description="K: episodes per held-out problem.")
    every: int = Field(
        default=0, ge=0, description="Also every so many iterations; 0 for ends only."
    )
    bootstrap: Positive = Field(
        default=10_000, description="Resamples of the paired interval; few problems need none."
    )
