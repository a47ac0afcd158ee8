"""Where metrics and traces go."""

from typing import Literal, cast

from pydantic import Field, model_validator

from mappa_core.core.section import Fraction, Section


class TrackingConfig(Section):
    """What is shown in MLflow."""

    trace_share: Fraction = Field(
        default=1.0,
        description="Share of the episodes shown as MLflow traces with the coach's feedback.",
    )
    versions: Literal["best_and_last", "every"] = Field(
        default="best_and_last",
        description="Which checkpoints become model versions, with their files: each agent's best "
        "and last when the run ends, or of every update as it is made.",
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

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_version(cls, values: object) -> object:
        """Read what runs stored by an earlier version called auto: they go on as others do."""
        if not isinstance(values, dict):
            return values
        told = cast(dict[str, object], values)
        return {**told, "versions": "best_and_last"} if told.get("versions") == "auto" else told
