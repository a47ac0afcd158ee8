"""Builds a tiny random model of each family that transformers and vLLM both have, and reads it.

Two layers of width 32 on 128 tokens, with windows that a few tokens reach beyond and weights wide
enough that a wrong reading shows.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.reading import Reading, Way
from mappa_core.train.learners.self_check import choose_reading, differences, readings
from mappa_core.train.prefix_tree import build

_SIZES: Mapping[str, object] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "sliding_window": 8,
    "attention_chunk_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Mixtures of experts.
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    # Latent attention.
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    # Older names, and recurrent layers.
    "n_inner": 48,
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "state_size": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_LATENT: Mapping[str, object] = {"head_dim": None, "num_key_value_heads": 4}
_TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
_CONVOLVED = {"layer_types": ["conv", "full_attention"]}
_RECURRENT = {"layer_types": ["linear_attention", "full_attention"]}
_PER_LAYER = {"vocab_size_per_layer_input": 128, "num_kv_shared_layers": 0}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_chunk_size": 8}

FAMILIES: Mapping[str, Mapping[str, object]] = {
    "llama": {},
    "llama4_text": {},
    "mistral": {},
    "ministral3": {},
    "mixtral": {},
    "qwen2": {},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
    "qwen3_next": _RECURRENT,
    "qwen3_5_text": _RECURRENT,
    "qwen3_5_moe_text": _RECURRENT,
    "gemma": {},
    "gemma2": _TWO_KINDS,
    "gemma3_text": _TWO_KINDS,
    "gemma3n_text": {
        **_TWO_KINDS,
        **_PER_LAYER,
        "intermediate_size": [48, 48],
        "activation_sparsity_pattern": [0.0, 0.0],
    },
    "gemma4_text": {**_TWO_KINDS, **_PER_LAYER},
    "gpt_oss": _TWO_KINDS,
    "phi": {},
    "phi3": {},
    "phimoe": {},
    "granite": {"logits_scaling": 4.0},
    "granitemoe": {"logits_scaling": 4.0},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"]},
    "cohere": {},
    "cohere2": _TWO_KINDS,
    "olmo2": {},
    "olmo3": _TWO_KINDS,
    "olmoe": {},
    "exaone4": _TWO_KINDS,
    "glm4": {},
    "glm4_moe": {},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "seed_oss": {},
    "smollm3": {},
    "ernie4_5": {},
    "hyperclovax": {},
    "apertus": {},
    "minimax_m2": {},
    "stablelm": {},
    "nemotron": {},
    "starcoder2": {},
    "gpt2": {},
    "gpt_neox": {},
    "opt": {},
    "bloom": {},
    "falcon": {},
    "lfm2": _CONVOLVED,
    "mamba": {},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "chunk_size": 8,
        "n_groups": 1,
    },
}
"""By the name of its configuration in transformers; what differs from the sizes above."""


def tiny_config(family: str) -> PreTrainedConfig:
    """Describe a tiny model of one of `FAMILIES`."""
    known = AutoConfig.for_model(family)
    names = known.to_dict().keys() | known.attribute_map.keys()
    sizes = {name: size for name, size in _SIZES.items() if name in names}
    sizes |= FAMILIES[family]
    given = {name: size for name, size in sizes.items() if size is not None}
    return AutoConfig.for_model(family, **given)


def tiny_model(family: str, seed: int = 0) -> PreTrainedModel:
    """Build it in float32 on the CPU, in evaluation mode; the process's generator is left alone."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(family), dtype=torch.float32)
    return model.eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyReading:
    """How one family is read."""

    way: Way
    """The one that is chosen."""
    tree_gap: float | None
    """Largest difference in nats of the tree's log-probs from the model's own, windows narrowed;
    infinite where it cannot be read so, None where it is not tried."""
    gap: float
    """That of the chosen way."""
    time_over_padded: float
    """CPU time of a forward and backward pass of the chosen way, over the padded one's."""


def read_family(family: str) -> FamilyReading:
    """Read a tiny model of one of `FAMILIES` in every way, in float32.

    Rounding to bfloat16 would hide how exact a way is.
    """
    ways = readings(tiny_model(family), 4096)
    gaps = [(each.way, float(differences(each).max())) for each in ways]
    learner = LearnerConfig(device="cpu", dtype="float32")
    chosen = choose_reading(tiny_model(family), learner)
    gap = float(differences(chosen).max())
    # The last is the plain attention, which every model has.
    padded = next(each for each in ways[::-1] if each.way == "padded")
    padded.base.set_attn_implementation(padded.attention)
    return FamilyReading(
        way=chosen.way,
        tree_gap=next((each for way, each in gaps if way == "tree"), None),
        gap=gap,
        time_over_padded=1.0 if chosen.way == "padded" else _ratio(chosen, padded),
    )


def _ratio(left: Reading, right: Reading) -> float:
    """Compare CPU times of one pass, forth and back, the least of several taken in turns.

    It is over 16 sequences of 96 shared and 16 own tokens.
    """
    prompt = [3 + i % 97 for i in range(96)]
    responses = [[3 + (7 * i + j) % 97 for j in range(16)] for i in range(16)]
    tree = build([prompt] * 16, responses)
    taken: list[list[float]] = [[], []]
    for turn in range(2 * 6):
        started = time.process_time()
        (left, right)[turn % 2].read(tree, 1.0).logprobs.sum().backward()
        taken[turn % 2].append(time.process_time() - started)
    return min(taken[0]) / min(taken[1])
