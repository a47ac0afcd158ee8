"""A random model of a few million weights: for what does not depend on what a model can do."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    # Wider than usual, so that a random model is not indifferent between tokens.
    "initializer_range": 0.2,
}


def save_tiny_model(of: Path, directory: Path) -> Path:
    """Write a tiny model of the same family, with the tokenizer of the model at `of`.

    The process's generator is left alone; returns `directory`.
    """
    config = AutoConfig.from_pretrained(of)
    config.update(SIZES)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(of).save_pretrained(directory)
    return directory
