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
    versions: Literal["auto", "every", "best_and_last"] = Field(
        default="auto",
        description="Which checkpoints become model versions, with their files: of every update as "
        "it is made, or each agent's best and last when the run ends; auto: every for adapters, "
        "best_and_last for whole weights.",
    )
    registered_dtype: Literal["bfloat16", "float32"] = Field(
        default="bfloat16",
        description="How precise the weights of a model version are: bfloat16 is half as large, "
        "and what a GPU serves; float32 is the checkpoint itself. Resuming reads the checkpoint.",
    )
    also: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        default=(),
        description="Where metrics go beside MLflow: TensorBoard's event files in MAPPA_HOME, "
        "Weights & Biases.",
    )
