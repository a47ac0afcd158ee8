"""What a server that is running already is tried with before a run uses it: a token, an adapter."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import torch
from peft import LoraConfig
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from mappa_core.core.records.episodes import GenerationRequest, PolicyVersion, Sampling
from mappa_core.models.layout import ADAPTER
from mappa_core.rollout.engines.base import EngineSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A request for one token, and an adapter that changes nothing."""

    request: GenerationRequest
    adapter: Path
    """Its directory, beside which those of a run will lie; of the run's rank."""

    def remove(self) -> None:
        """Remove the adapter's files; safe to call twice."""
        shutil.rmtree(self.adapter, ignore_errors=True)


def write_probe(setup: EngineSetup) -> Probe:
    """Write an adapter for the model's first linear layer, whose product is 0."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(setup.model))
    name, linear = next(
        (name, part) for name, part in model.named_modules() if type(part) is torch.nn.Linear
    )
    rank = setup.lora_rank
    directory = setup.work_directory / f"probe-{uuid4().hex[:8]}"
    directory.mkdir(parents=True)
    LoraConfig(
        r=rank,
        lora_alpha=rank,
        target_modules=[name.rpartition(".")[2]],
        task_type="CAUSAL_LM",
        base_model_name_or_path=setup.name,
    ).save_pretrained(str(directory))
    save_file(
        {
            f"base_model.model.{name}.lora_A.weight": torch.zeros(rank, linear.in_features),
            f"base_model.model.{name}.lora_B.weight": torch.zeros(linear.out_features, rank),
        },
        directory / ADAPTER.weights,
    )
    return Probe(request=_one_token(setup), adapter=directory)


def _one_token(setup: EngineSetup) -> GenerationRequest:
    """Ask for what comes after a token that every vocabulary has."""
    policy = PolicyVersion(
        id=uuid4(),
        run_id=uuid4(),
        agent="probe",
        step=0,
        base_model=setup.name,
        adapter_uri=None,
    )
    sampling = Sampling(temperature=1.0, top_p=1.0, max_tokens=1)
    return GenerationRequest(policy=policy, prompt_token_ids=(1,), sampling=sampling, seed=0)
