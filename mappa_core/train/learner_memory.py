"""Plans what a learner takes of the GPU that one of its ranks is on, by arithmetic.

Bytes per weight of mixed precision are those of ZeRO (arXiv 1910.02054, section 3.1): 2 for the
bfloat16 weight, 2 for its gradient, 12 for float32 master and AdamW's two moments; gradients are
added up in float32, which is 4 more. Of R ranks each holds (figure 1 there):

    stage 1   weights and gradients whole, masters and moments by R
    stage 2   weights whole, the rest by R
    stage 3   all by R, and what is gathered of the weights while they are used

Activations follow Korthikanti et al. (arXiv 2205.05198, section 4), for a gated feed-forward layer.
They are not divided: each rank reads sequences of its own.
"""

from collections.abc import Iterator

from mappa_core.models.shape import ModelShape
from mappa_core.train.config import LearnerConfig
from mappa_core.train.memory_items import COLLECTIVE_BYTES, CONTEXT_BYTES, Item

SHARDED_STAGE = 3
"""Of ZeRO: from it on each rank loads its part of the weights alone."""
WHOLE_AT_ONCE = 16
"""One weight of so many is gathered at once at stage 3, and one gradient of so many reduced."""
LOGIT_ROWS = 128
"""Rows of logits held at once: `token_logprobs.ROWS`."""
COPIED_KEYS = 2**26
"""Elements of keys copied for one call of the tree attention: `tree_attention.COPIED`."""


class LearnerNeeds:
    """What the torch learner, or one of DeepSpeed's ranks, takes item by item."""

    def __init__(self, shape: ModelShape, learner: LearnerConfig) -> None:
        """Count the weights."""
        self._shape, self._learner = shape, learner
        self._lora = learner.weights == "lora"
        self._deepspeed = learner.backend == "deepspeed"
        self._ranks = learner.deepspeed.ranks if self._deepspeed else 1
        self._stage = learner.deepspeed.stage if self._deepspeed else 0
        self._weights = shape.parameters
        self._adapter = shape.adapter_parameters(learner.lora.rank)

    def staying(self) -> Iterator[Item]:
        """List what stays while agents play; DeepSpeed's ranks let go of all they hold."""
        if not self._deepspeed:
            base = (2 if self._lora else 4) * self._weights
            model = base + (4 * self._adapter if self._lora else 0)
            yield Item("rollout", "the learner's model (loaded through the CPU)", model, base)
        yield Item("rollout", "the learner's process", CONTEXT_BYTES)

    def update(self) -> Iterator[Item]:
        """List one agent's update: weights, gradients, optimiser, activations, logits."""
        shape, tokens = self._shape, self._learner.micro_batch_tokens
        kept = shape.layers * shape.layer_bytes_per_token
        if self._learner.gradient_checkpointing:
            # Every layer's input, and one layer at a time with its gradients.
            kept = 2 * shape.hidden * shape.layers + 2 * shape.layer_bytes_per_token
        outputs = (1 if self._lora else 2) * shape.vocabulary * shape.hidden
        logits = 4 * (2 * LOGIT_ROWS * shape.vocabulary + outputs)
        # The tree's mask, once as it is made and once by blocks, and the copies of one call.
        attention = 2 * tokens**2 + 6 * 2 * COPIED_KEYS
        yield from self._sharded() if self._deepspeed else self._whole()
        yield Item("update", f"activations, {tokens} tokens", tokens * kept)
        yield Item("update", "attention's mask and copies", attention)
        yield Item("update", "logits and output weights", logits)
        yield Item("update", "the learner's process", CONTEXT_BYTES)

    def checkpoints(self) -> Iterator[Item]:
        """List what of weights and moments passes through the CPU's memory, in float32."""
        if not self._deepspeed:
            trained = self._adapter if self._lora else self._weights
            what = "moments as they are read, or a checkpoint to write"
            yield Item("update", what, host_bytes=16 * trained)
        elif self._lora:
            whole = 0 if self._stage == SHARDED_STAGE else 2 * self._weights
            yield Item("update", "a fresh adapter", host_bytes=4 * self._adapter)
            yield Item("update", "frozen base, as it is loaded", host_bytes=whole)

    def _whole(self) -> Iterator[Item]:
        """List the state of the torch learner, which is alone."""
        if self._lora:
            yield Item("update", "frozen base", 2 * self._weights)
            yield Item("update", "adapter, gradients, moments", 16 * self._adapter)
            return
        yield Item("update", "float32 weights and gradients", 8 * self._weights)
        yield Item("update", "AdamW's moments", 8 * self._weights)

    def _sharded(self) -> Iterator[Item]:
        """List a rank's part of the state, and what it exchanges with the others."""
        weights, offload = 2 * self._by(SHARDED_STAGE), self._learner.deepspeed.offload
        where = (0.0, weights) if offload and self._stage == SHARDED_STAGE else (weights, 0.0)
        if self._lora:
            yield Item("update", "frozen base", *where)
            yield Item("update", "adapter, gradients, moments", 16 * self._adapter)
        else:
            yield Item("update", "bfloat16 weights", *where)
            yield Item("update", "bfloat16 gradients", 2 * self._by(2))
            state = 12 * self._by(1) + 4 * self._by(2)
            where = (0.0, state) if offload else (state, 0.0)
            yield Item("update", "float32 masters, gradients, moments", *where)
            yield Item("update", "gradients that are being reduced", 2 * self._at_once())
        if self._stage == SHARDED_STAGE:
            yield Item("update", "weights that are gathered", 2 * self._at_once())
        if self._ranks > 1:
            yield Item("update", "buffers of collectives", COLLECTIVE_BYTES)

    def _by(self, stage: int) -> float:
        """Count the weights of a rank of what is divided from `stage` on."""
        return self._weights / self._ranks if self._stage >= stage else self._weights

    def _at_once(self) -> float:
        """Count what passes among ranks together: a part of the model, or its largest tensor."""
        return max(self._weights / WHOLE_AT_ONCE, self._shape.vocabulary * self._shape.hidden)
