"""Where metrics and traces go."""

from typing import Literal

from pydantic import Field

from mappa_core.core.section import Fraction, Section


class TrackingConfig(Section):
    """What is shown in MLflow."""

    trace_share: Fraction = Field(
        default=1.0,
        description="Share of the episodes shown as MLflow traces with the coach's feedback.",
    )
    also: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        default=(),
        description="Where metrics go beside MLflow: TensorBoard's event files in MAPPA_HOME, "
        "Weights & Biases.",
    )
