"""Checkpoints on disk, with the layout that the learner writes."""

import hashlib
from pathlib import Path

from mappa_core.core import ids
from mappa_core.core.records.episodes import PolicyVersion
from mappa_core.core.records.updates import Checkpoint
from mappa_core.models.layout import layout_of


def write_adapter(folder: Path, policy: PolicyVersion) -> Checkpoint:
    """Files in the places of a checkpoint, optimiser state included, with made-up content."""
    directory = folder / policy.agent / str(policy.step)
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    (directory / "adapter_model.safetensors").write_bytes(f"step {policy.step}".encode())
    (directory / "optimizer.pt").write_bytes(b"moments")
    return checkpoint_in(directory, policy)


def checkpoint_in(directory: Path, policy: PolicyVersion) -> Checkpoint:
    """The record of what lies in `directory`."""
    weights = (directory / layout_of(directory).weights).read_bytes()
    return Checkpoint(
        id=ids.content_id("checkpoint", policy.id),
        policy_version_id=policy.id,
        directory=str(directory),
        sha256=hashlib.sha256(weights).hexdigest(),
        size_bytes=len(weights),
    )
