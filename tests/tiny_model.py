"""A random Llama with a chat template, built from nothing in under a second."""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = ("What is 7 + 5? The answer is 12.", "def main():\n    print(7 + 5)\n")


def save_tiny_model(directory: Path, *, seed: int = 0, hidden: int = 64, layers: int = 2) -> Path:
    """Write the model and its tokenizer to `directory`, which is returned."""
    tokenizer = _tokenizer()
    tokenizer.save_pretrained(directory)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            # Wider than usual, so that a random model is not indifferent between tokens.
            initializer_range=0.2,
        )
    )
    model.save_pretrained(directory)
    return directory


def save_tiny_judge(directory: Path) -> Path:
    """Write one with room for a rubric, which it reads letter by letter; returns `directory`."""
    save_tiny_model(directory)
    config = LlamaConfig.from_pretrained(directory)
    # A head of 16 numbers, as the tiny model has, is none that bfloat16 attention knows on a CPU.
    config.update({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32})
    config.max_position_embeddings = 16384
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def save_adapter(
    base: Path, directory: Path, *, seed: int = 0, size: float = 0.05, rank: int = 8
) -> Path:
    """Write a random LoRA adapter for `base`, with B entries of deviation `size`."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(
        model,
        LoraConfig(r=rank, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=size)
    adapted.save_pretrained(str(directory))
    return directory


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
    )
