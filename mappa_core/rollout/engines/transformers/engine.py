"""The engine on plain transformers: in this process, one request at a time.

Slow (tens of tokens a second), but it needs nothing beyond torch, and a request gives the same
tokens bit for bit whatever else is asked for.
"""

import asyncio
import time
from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path

from transformers import PreTrainedModel

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.models.device import resolve_device, resolve_dtype
from mappa_core.models.weights import is_whole_model, load_base, read_adapter
from mappa_core.rollout.config import EngineConfig
from mappa_core.rollout.engines.base import EngineSetup, check_served, sampling_within
from mappa_core.rollout.engines.transformers.sampling import sample


class TransformersEngine:
    """An `Engine` on models in memory: the base, and each trained agent's with its own weights.

    What an adapter does not change is there once.
    """

    def __init__(
        self, model: Path | str, config: EngineConfig, end_token_ids: Sequence[int]
    ) -> None:
        self._path = model
        self._device = resolve_device(config.device)
        self._dtype = resolve_dtype(config.dtype, self._device)
        self._max_length = config.max_model_length
        self._end_token_ids = frozenset(end_token_ids)
        self._base: PreTrainedModel | None = None
        self._served: dict[str, tuple[PolicyVersion, PreTrainedModel]] = {}
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Read the base weights."""
        async with self._lock:
            if self._base is None:
                self._base = await asyncio.to_thread(self._read_base)

    async def load(self, policy: PolicyVersion) -> None:
        """Merge `policy`'s weights into a model for its agent."""
        async with self._lock:
            base = self._started()
            served, _ = self._served.get(policy.agent, (None, base))
            if served is not None and served.id == policy.id:
                return
            merged = base
            if policy.adapter_uri is not None:
                merged = await asyncio.to_thread(self._merged, base, Path(policy.adapter_uri))
            self._served[policy.agent] = (policy, merged)

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action, after the requests that came earlier."""
        async with self._lock:
            started = time.perf_counter()
            served, model = self._served.get(request.policy.agent, (None, self._started()))
            check_served(request.policy, served)
            token_ids, logprobs, finish_reason = await asyncio.to_thread(
                sample,
                model,
                request.prompt_token_ids,
                sampling_within(request, self._max_length),
                seed=request.seed,
                end_token_ids=self._end_token_ids,
            )
        return Completion(
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=finish_reason,
            seconds=time.perf_counter() - started,
        )

    async def close(self) -> None:
        """Let the memory go; safe to call twice."""
        async with self._lock:
            self._served.clear()
            self._base = None

    def _read_base(self) -> PreTrainedModel:
        try:
            return load_base(self._path, self._dtype, self._device)
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot read the model at {self._path}: {error}") from error

    def _merged(self, base: PreTrainedModel, adapter: Path) -> PreTrainedModel:
        try:
            if is_whole_model(adapter):
                return load_base(adapter, self._dtype, self._device)
            updates = read_adapter(adapter)
            changed = {id(base.get_parameter(name)) for name in updates}
            tensors = chain(base.parameters(), base.buffers())
            model = deepcopy(base, {id(one): one for one in tensors if id(one) not in changed})
            for name, update in updates.items():
                weight = model.get_parameter(name)
                weight.data = update.to(weight.device).added_to(weight.data, self._dtype)
        except (OSError, ValueError, AttributeError, RuntimeError) as error:
            raise EngineError(f"cannot serve the weights {adapter}: {error}") from error
        return model

    def _started(self) -> PreTrainedModel:
        if self._base is None:
            raise EngineError("the transformers engine is not running: call start() first")
        return self._base


def open_engine(setup: EngineSetup) -> TransformersEngine:
    """The engine, not started yet."""
    return TransformersEngine(setup.model, setup.config, setup.end_token_ids)
