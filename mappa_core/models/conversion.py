"""Models converted into a folder of their own, and what to say where that fails."""

import errno
from pathlib import Path
from typing import Literal

from mappa_core.core.errors import DiskFull, ModelNotFound

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_full(error: Exception) -> bool:
    """Tell whether there is no room, as Python says it or a library in Rust."""
    said = (f"(os error {number})" in str(error) for number in _NO_ROOM)
    return (isinstance(error, OSError) and error.errno in _NO_ROOM) or any(said)


def not_kept(name: str, place: Path, key: str, error: Exception) -> DiskFull | ModelNotFound:
    """Say of a model that its place does not take it; `key` is the variable that moves it."""
    if is_full(error):
        return DiskFull(f"no space left for {name} in {place}: free some, or set {key} to another")
    return ModelNotFound(
        f"model={name} cannot be kept in {place} ({error}): make it writable, or set {key} to "
        "another place"
    )


def publish(converted: Path, target: Path) -> None:
    """Give a converted model its place, unless another process has done so."""
    try:
        converted.rename(target)
    except OSError:
        # Another process converted it meanwhile: the result is the same.
        if not target.is_dir():
            raise


def convert_gguf(
    source: Path, target: Path, dtype: Literal["float32", "bfloat16"] = "float32"
) -> None:
    """Write the model in the GGUF file `source` as safetensors with its tokenizer.

    Of any family that transformers reads from GGUF: Llama, Qwen2 with its attention's biases.
    """
    # Seconds to import, and of use once.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mappa_core.models.weights import no_progress_bars

    with no_progress_bars():
        model = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=getattr(torch, dtype)
        )
        # transformers takes a model read from GGUF for quantised and refuses to save it, though
        # its weights are plain floats by now.
        delattr(model.config, "quantization_config")
        model.__dict__["hf_quantizer"] = None
        model.save_pretrained(target)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        tokenizer.save_pretrained(target)
