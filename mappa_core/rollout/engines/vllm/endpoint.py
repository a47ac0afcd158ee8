"""A vLLM server that is running already: what it must be able to do, and the policies put there.

Each policy is an adapter under a name of its own, which no other run and no earlier try has used:
what a server keeps of an adapter, it keeps by name and path.
"""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid4

from pydantic import BaseModel, ValidationError

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import Completion, GenerationRequest, PolicyVersion
from mappa_core.models.serving.client import Refused, ServerDied, VllmClient
from mappa_core.rollout.engines.base import EngineSetup
from mappa_core.rollout.engines.vllm.completions import completed, completion_body
from mappa_core.rollout.engines.vllm.probe import Probe

_NOT_FOUND = 404


class _Card(BaseModel):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _Cards(BaseModel):
    data: tuple[_Card, ...]


class Endpoint:
    """One address of `engine.urls`, and which policies it has."""

    def __init__(self, url: str, setup: EngineSetup) -> None:
        """Prepare it; nothing is sent before `check`."""
        self.url = url
        self.left_out = True
        """Until it passes its check and has all policies, no request goes there."""
        self._setup = setup
        self._base = ""
        self._names: dict[UUID, str] = {}
        self._client = VllmClient(url)
        self._client.connect(url)

    async def check(self, probe: Probe) -> None:
        """Find out whether it can do what a run needs.

        Raises:
            ServerDied: It does not answer.
            EngineError: It is not what it must be; the message says all that is missing.
        """
        self._names.clear()
        if not await self._client.healthy():
            raise ServerDied("nothing healthy answers")
        missing = await self._missing_model()
        if not missing:
            missing = [*await self._missing_logprobs(probe), *await self._missing_adapters(probe)]
        if missing:
            raise EngineError(f"{self.url} cannot serve this run: {'; '.join(missing)}")

    def has(self, policy: PolicyVersion) -> bool:
        """Tell whether requests for `policy` can be made."""
        return policy.adapter_uri is None or policy.id in self._names

    async def put(self, policy: PolicyVersion) -> None:
        """Upload the adapter of `policy`, beside all that are there; the base is there already.

        Raises:
            ServerDied: It is gone.
            EngineError: It cannot read the adapter.
        """
        if policy.adapter_uri is None:
            return
        name = f"{policy.id}-{uuid4().hex[:8]}"
        try:
            await self._load(name, Path(policy.adapter_uri))
        except Refused as error:
            raise EngineError(
                f"{self.url} cannot load {policy.agent}'s adapter {policy.adapter_uri}: "
                f"{error.said}"
            ) from error
        self._names[policy.id] = name

    async def drop(self, policy: PolicyVersion) -> None:
        """Unload the adapter of `policy`, where it is there; raises as `put`."""
        name = self._names.pop(policy.id, None)
        if name is not None:
            await self._unload(name)

    async def drop_all(self) -> None:
        """Unload all that this run has put there; raises as `put`."""
        while self._names:
            await self._unload(self._names.popitem()[1])

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one action.

        Raises:
            ServerDied: It is gone, or was started anew and has the policy no more.
            EngineError: It refuses.
        """
        model = self._base
        if request.policy.adapter_uri is not None:
            model = self._names[request.policy.id]
        try:
            return await completed(self._client, self._body(request, model))
        except Refused as error:
            if error.status == _NOT_FOUND:
                raise ServerDied(f"{self.url} does not know {model} any more") from error
            raise

    async def close(self) -> None:
        """Let the connections go."""
        await self._client.disconnect()

    def _body(self, request: GenerationRequest, model: str) -> dict[str, object]:
        return completion_body(
            request,
            model=model,
            end_token_ids=self._setup.end_token_ids,
            max_model_length=self._setup.config.max_model_length,
        )

    async def _missing_model(self) -> Sequence[str]:
        names = (self._setup.name, str(self._setup.model))
        try:
            cards = _Cards.model_validate_json((await self._client.get("/v1/models")).body)
        except (Refused, ValidationError) as error:
            return (f"its /v1/models is not vLLM's ({' '.join(str(error).split())[:120]})",)
        bases = [card for card in cards.data if card.parent is None]
        fitting = [card for card in bases if card.id in names or card.root in names]
        if not fitting:
            there = ", ".join(f"{card.id} ({card.root})" for card in bases) or "no model"
            return (
                f"it serves {there}, not {names[0]} (start it with that model, or "
                f"--served-model-name {names[0]} where it is the same)",
            )
        self._base = fitting[0].id
        length, has = self._setup.config.max_model_length, fitting[0].max_model_len
        if has is not None and has < length:
            return (f"--max-model-len {length} or more is missing (it has {has})",)
        return ()

    async def _missing_logprobs(self, probe: Probe) -> Sequence[str]:
        # Of one token that may be drawn the log-probability is 0 in the distribution that is
        # sampled from, and in the model's own it is not.
        body = self._body(probe.request, self._base) | {"top_k": 1}
        try:
            completion = await completed(self._client, body)
        except (Refused, ValidationError) as error:
            return (f"it does not sample ({' '.join(str(error).split())[:200]})",)
        if completion.logprobs != (0.0,):
            return ("--logprobs-mode processed_logprobs is missing",)
        return ()

    async def _missing_adapters(self, probe: Probe) -> Sequence[str]:
        name = f"probe-{uuid4().hex[:8]}"
        try:
            await self._load(name, probe.adapter)
            await self._unload(name)
        except Refused as error:
            return (
                f"it cannot load adapters from {probe.adapter.parent} ({error.said}): it needs "
                f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-lora-rank "
                f"{self._setup.lora_rank} or more, and that folder under the same path",
            )
        return ()

    async def _load(self, name: str, adapter: Path) -> None:
        order = {"lora_name": name, "lora_path": str(adapter.resolve())}
        await self._client.post("/v1/load_lora_adapter", order)

    async def _unload(self, name: str) -> None:
        await self._client.post("/v1/unload_lora_adapter", {"lora_name": name})
