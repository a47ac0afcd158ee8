"""What the workers of our vLLM servers do besides: they read a policy's checkpoint themselves.

vLLM adds the class to its own (`--worker-extension-cls`), and calls it through `/collective_rpc`.
An adapter is merged on the way, so that merged weights lie in no file.
"""

from pathlib import Path
from typing import Any

from mappa_core.models.weights import ServedWeights


class CheckpointWorker:
    """A part of vLLM's worker, which has the rest."""

    vllm_config: Any
    reload_weights: Any

    def serve_checkpoint(self, checkpoint: str) -> str:
        """Replace all weights by a checkpoint's: whole ones, or the base's and its adapter.

        Args:
            checkpoint: Its directory; empty: the base as it came.

        Returns:
            Why it cannot be read, and then nothing was replaced; empty where it is served.

        Raises:
            ValueError: A file of the base model is damaged; some weights may be replaced.
            OSError: One cannot be read, likewise.
        """
        model = self.vllm_config.model_config
        try:
            weights = ServedWeights(
                model.model, Path(checkpoint) if checkpoint else None, model.dtype
            )
        except (OSError, ValueError) as error:
            return str(error)
        self.reload_weights(weights_iterator=weights.tensors())
        return ""
