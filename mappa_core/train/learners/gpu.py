"""A GPU that is full or fails, as what a person can do about it."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from mappa_core.core.errors import LearnerError


@contextmanager
def failures_named() -> Generator[None]:
    """Turn what torch raises inside into one line.

    Raises:
        LearnerError: The GPU's memory is full, or the GPU failed.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise LearnerError(
            f"the GPU's memory is full ({str(error).splitlines()[0]}): start a run with a "
            "smaller learner.micro_batch_tokens, or with learner.gradient_checkpointing=true"
        ) from error
    except torch.AcceleratorError as error:
        raise LearnerError(
            f"the GPU failed ({str(error).splitlines()[0]}): mappa train --resume goes on "
            "from the last checkpoint"
        ) from error
