"""What all engines share: what they are opened with, and what they check of a request."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import GenerationRequest, PolicyVersion, Sampling
from mappa_core.rollout.config import EngineConfig

if TYPE_CHECKING:
    from mappa_core.models.serving.server import Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetup:
    """What an engine is opened with."""

    config: EngineConfig
    model: Path | str
    """Directory of the base weights."""
    name: str = ""
    """What the configuration calls the model; servers of `engine.urls` serve it by this name, or
    from `model`."""
    agents: tuple[str, ...]
    """Names of all agents to be served."""
    end_token_ids: tuple[int, ...]
    """Tokens that end a turn."""
    work_directory: Path
    """The adapter lies here by which servers of `engine.urls` are tried."""
    log_directory: Path
    whole_weights: bool = False
    """Whether agents train all weights, not adapters."""
    lora_rank: int = 64
    """Largest rank of an adapter (serving `adapters` only)."""
    gpu_cache_bytes: int | None = None
    """Key-value cache of each server on a GPU; None: what a server finds its share to leave."""
    replicas: int = 1
    """Servers that serve each policy alike (vLLM only)."""
    device: str | None = None
    """`cpu` or `cuda`, where servers are on other machines than this one; None: as this has it."""
    servers: "Servers | None" = None
    """What servers come from (vLLM only); None: this machine."""
    devices: tuple[tuple[str, ...], ...] = ()
    """The GPUs of each server, by their names in CUDA_VISIBLE_DEVICES: those of the first replica
    come first. Empty: the servers see what this process sees."""
    sleeps: bool = False
    """Whether the servers leave their GPUs to the learner while agents learn (vLLM only)."""


def serves_whole_models(config: EngineConfig, device: str, *, whole_weights: bool) -> bool:
    """Whether each agent has a server with full weights, and not an adapter beside shared ones.

    Trained whole weights need that on every device. Servers of `engine.urls` have adapters.
    """
    automatic = config.serving == "auto" and device == "cpu" and not config.urls
    return whole_weights or automatic or config.serving == "merged"


def check_served(policy: PolicyVersion, served: PolicyVersion | None) -> None:
    """Refuse to sample from another version than the one asked for.

    Raises:
        EngineError: `served`, which the engine has for the agent, is not `policy`.
    """
    if served is None or served.id != policy.id:
        serves = "nothing" if served is None else f"step {served.step}"
        raise EngineError(
            f"{policy.agent} was asked for at step {policy.step} and the engine serves "
            f"{serves} for it: load the policy first"
        )


def sampling_within(request: GenerationRequest, max_model_length: int) -> Sampling:
    """The request's sampling with no more tokens than `max_model_length` leaves for an answer.

    Raises:
        EngineError: The prompt leaves no room.
    """
    room = max_model_length - len(request.prompt_token_ids)
    if room < 1:
        raise EngineError(
            f"a prompt of {len(request.prompt_token_ids)} tokens leaves no room in "
            f"{max_model_length}: raise engine.max_model_length"
        )
    return replace(request.sampling, max_tokens=min(room, request.sampling.max_tokens))
