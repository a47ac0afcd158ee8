"""vLLM by its own Python API, in a process of its own: what our engine is compared with."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from mappa_core.core.errors import EngineError
from mappa_core.core.records.episodes import GenerationRequest
from mappa_core.models.device import resolve_device
from mappa_core.models.serving.command import environment
from mappa_core.rollout.engines.base import EngineSetup, sampling_within
from mappa_core.rollout.engines.vllm.command import server_flags

_SCRIPT = Path(__file__).with_name("plain_script.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainBatch:
    """What vLLM sampled of requests that it was given all at once."""

    seconds: float
    tokens: tuple[tuple[int, ...], ...]
    """By request, in order."""


def sample_plainly(
    setup: EngineSetup, batches: Sequence[Sequence[GenerationRequest]]
) -> tuple[PlainBatch, ...]:
    """Sample batches one after another from the base weights, as one server of an engine is set up.

    Type, cache, sequences at once and environment are those of the engine's servers, which should
    have ended: they would hold the memory and the cores.

    Raises:
        EngineError: vLLM failed.
    """
    device = resolve_device(setup.config.device)
    # The default of 128 tokens is longer than most prefixes that prompts share; on a CPU vLLM by
    # itself takes multiples of 32.
    blocks = ("--block-size", "32") if device == "cpu" else ()
    asked = {
        "arguments": (*server_flags(setup, device), *blocks),
        "batches": [[_asked(request, setup) for request in batch] for batch in batches],
    }
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(asked, file)
        file.flush()
        done = subprocess.run(
            (sys.executable, "-P", str(_SCRIPT), file.name),
            env=environment(os.environ, device=device, weight_sync=setup.config.weight_sync),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineError(f"vLLM by its own Python API sampled nothing: {last}")
    # vLLM logs to the same stream, until its very end.
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"seconds"')]
    return tuple(TypeAdapter(PlainBatch).validate_json(line) for line in lines)


def _asked(request: GenerationRequest, setup: EngineSetup) -> dict[str, object]:
    """Give a request as the script takes it, with what a server is asked for."""
    sampling = sampling_within(request, setup.config.max_model_length)
    more = {"seed": request.seed, "stop_token_ids": setup.end_token_ids, "logprobs": 0}
    return {"prompt": request.prompt_token_ids, "sampling": asdict(sampling) | more}
