"""Which base model a run has, by its files: what changes a prompt's ids or a log-prob."""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.core import ids

if TYPE_CHECKING:
    from mappa_core.models.tokenizer import ChatTokenizer

_CONFIG = ("config.json", "generation_config.json")
_TOKENIZER = (
    *("tokenizer*", "vocab*", "merges*", "*.model", "*.tiktoken"),
    *("special_tokens_map.json", "added_tokens.json"),
)
BLOCKS = 64
"""How many blocks of a file of weights are read."""
BLOCK_BYTES = 2**16


def model_provenance(model: Path, tokenizer: "ChatTokenizer") -> dict[str, str]:
    """Fingerprint a base model: configuration, weights, tokenizer and chat template.

    Weights are sampled: of each safetensors file its name, its size and 64 blocks of 64 KiB, evenly
    spaced from its start, which holds names, shapes and dtypes. Other weights, fine-tuned or merged
    ones, differ in them; a single number that was changed by hand need not.
    """
    return {
        "model.config": _files(model, _CONFIG),
        "model.weights": ids.fingerprint(
            *((file.name, _sampled(file)) for file in _found(model, ("*.safetensors",)))
        ),
        "model.tokenizer": _files(model, _TOKENIZER),
        "model.chat_template": ids.fingerprint(json.dumps(tokenizer.chat_template, sort_keys=True)),
    }


def _files(model: Path, patterns: Sequence[str]) -> str:
    found = _found(model, patterns)
    return ids.fingerprint(*((file.name, sha256(file.read_bytes()).hexdigest()) for file in found))


def _found(model: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in model.glob(pattern)})


def _sampled(file: Path) -> str:
    size = file.stat().st_size
    digest = sha256(str(size).encode())
    with file.open("rb") as read:
        for offset in range(0, size, max(BLOCK_BYTES, size // BLOCKS)):
            read.seek(offset)
            digest.update(read.read(BLOCK_BYTES))
    return digest.hexdigest()
