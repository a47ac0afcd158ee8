"""One update by TRL's GRPO trainer, for `mappa bench learner trl_python=...`; prints one JSON line.

Runs in an environment that has TRL, which this project does not: TRL is measured, never used.
In bfloat16 it is told `bf16`, which is products under autocast, and a frozen base lies in it.
The micro-batches are padded to their own longest sequence, which is kinder than a trainer's
padding to the longest of the whole batch.
"""

import ctypes
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

PROC = Path("/proc/self")


def status_bytes(name):
    lines = (PROC / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def padded(rows, left, fill):
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), fill)
    mask = torch.zeros((len(rows), longest), dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[number, place] = torch.tensor(row)
        mask[number, place] = 1
    return ids, mask


def trainer_of(spec, directory):
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    rough, frozen = spec["dtype"] == "bfloat16", spec["weights"] == "lora"
    dtype = torch.bfloat16 if rough and frozen else torch.float32
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=dtype)
    lora = LoraConfig(
        r=spec["rank"], lora_alpha=spec["alpha"], target_modules="all-linear", task_type="CAUSAL_LM"
    )
    if spec["gradient_checkpointing"]:
        # As a trainer does it when it begins to train.
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
        peft_config=lora if spec["weights"] == "lora" else None,
        args=GRPOConfig(
            output_dir=directory,
            loss_type="grpo",
            beta=0.0,
            per_device_train_batch_size=2,
            num_generations=2,
            gradient_checkpointing=spec["gradient_checkpointing"],
            bf16=rough,
            use_cpu=True,
            report_to=[],
        ),
    )


def micro_batch(samples, pad):
    prompts, prompt_mask = padded([s["prompt"] for s in samples], True, pad)
    completions, completion_mask = padded([s["response"] for s in samples], False, pad)
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": completions,
        "completion_mask": completion_mask,
        "advantages": torch.tensor([s["advantage"] for s in samples]),
        "num_items_in_batch": completion_mask.sum(),
    }


def update(trainer, optimizer, samples, size):
    model = trainer.model
    parts = [samples[i : i + size] for i in range(0, len(samples), size)]
    trainer.current_gradient_accumulation_steps = len(parts)
    optimizer.zero_grad()
    for part in parts:
        inputs = micro_batch(part, trainer.processing_class.pad_token_id or 0)
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, inputs)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def main():
    spec = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(spec["threads"])
    with tempfile.TemporaryDirectory() as directory:
        trainer = trainer_of(spec, directory)
        trained = [p for p in trainer.model.parameters() if p.requires_grad]
        trainer.model.train()
        update(trainer, torch.optim.AdamW(trained, lr=1e-6), spec["samples"][:1], 1)
        # Moments and gradients are the measured update's own, as MAPPA's are, and what the warm-up
        # left on the heap is not there already when it starts.
        optimizer = torch.optim.AdamW(trained, lr=1e-6)
        optimizer.zero_grad()
        ctypes.CDLL(None).malloc_trim(0)
        (PROC / "clear_refs").write_text("5")
        before, started = status_bytes("VmRSS"), time.perf_counter()
        cpu = time.process_time()
        update(trainer, optimizer, spec["samples"], spec["micro_batch"])
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    tokens = sum(len(s["prompt"]) + len(s["response"]) for s in spec["samples"])
    answer = {
        "tokens_per_second": tokens / seconds,
        "tokens_per_cpu_second": tokens / cpu,
        "extra_bytes": status_bytes("VmHWM") - before,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
