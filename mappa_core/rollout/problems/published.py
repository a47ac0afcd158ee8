"""The published problem files that presets name: where they are, and which bytes they must be.

They are those of the reference implementation (github.com/ltjed/multiagent-coaching, MIT licence)
at one commit. A file that is not the one with the hash is never kept, wherever it came from.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import httpx

from mappa_core.core.errors import ConfigError, OutsideError
from mappa_core.rollout.config import ProblemsConfig

COMMIT = "ed66921df05e0765a9dfe86017e296d4276b58fa"
SOURCE = f"https://raw.githubusercontent.com/ltjed/multiagent-coaching/{COMMIT}/data/Bench"
HUB = "https://huggingface.co"
"""Where data sets are, unless HF_ENDPOINT names a mirror."""
SHA256: Mapping[str, str] = MappingProxyType(
    {
        "AIME_1983_2024.json": "bf08c2a301e4f5dc338453c1e19d0993448452a0d5fdb739826cf609255671d3",
        "aime_2025.json": "ad3c0c8341eedc8f3b7d4048a66ded19aca59403f373fb69aa153e95c719682b",
        "aime_eval_32.json": "6113954d4ab64bb679af1dfd89103e613384fca34ce3db8f869f38eac7c1b57b",
        "amc.json": "a919ebffad605711fe89323a8c8511ed997c570510eea31585594346c5f8e585",
        "amc_32.json": "fb53d97404079b95c81dbafbebeb163d6bd595184ba721235c5f36515f443bff",
        "amc_eval_32.json": "ba208c17af3586190f6fb54695f3ce5627cdbd535af0038789f42d6aeedf6c0a",
        "dsbench_modeling_cleaned_prompts.json": (
            "fa5de59bab19296a1e4eed3305a594daa60bc3f199a8462653a3c4b6fbc44fdc"
        ),
        "dsbench_modeling_eval.json": (
            "6ea24184d84f2f6265c486058f1b94e13e920f15a5e2d9ef052c92d8b39e5b36"
        ),
        "dsbench_modeling_train.json": (
            "4b65338d578f6e3aeaba398264f1b755ff112df8143b36c7bf7bd40d03d5be4e"
        ),
    }
)
"""Of each published file, by its name."""
SECONDS = 60.0
"""How long an address may be silent."""

_DATASET = re.compile(r"hf://datasets/(?P<id>[\w.-]+/[\w.-]+)@(?P<revision>[\w.-]+)(?P<path>/.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One problem file that a configuration names, and that is there now."""

    path: Path
    source: str | None
    """Where it came from; None where it was there already."""


def fetch_problems(config: ProblemsConfig, source: str = SOURCE) -> Sequence[Fetched]:
    """Bring every problem file that `config` names to where it is named, and check its hash.

    Args:
        config: Whose files; those that are there are checked and left.
        source: The folder they come from: https://..., file:///..., or a data set on the hub,
            hf://datasets/OWNER/NAME@REVISION/FOLDER.

    Raises:
        ConfigError: No file is named, one is not among the published ones, another file of its
            name is there, or the address is none.
        OutsideError: One cannot be had, or is not the published one.
    """
    named = [*config.train_files, *config.held_out_files]
    named += [config.prompts_file] if config.prompts_file is not None else []
    if not named:
        raise ConfigError(f"problems.source={config.source} names no files: nothing to fetch")
    unknown = [path.name for path in named if path.name not in SHA256]
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)}: not a published file; there are {', '.join(SHA256)}"
        )
    wanted = dict.fromkeys(named)
    there = {path: path.exists() for path in wanted}
    for path in wanted:
        if there[path] and _sha256(path.read_bytes()) != SHA256[path.name]:
            raise ConfigError(f"{path} is not the published file: move it away, then fetch again")
    return [
        Fetched(path=path, source=None if there[path] else _bring(path, address(source)))
        for path in wanted
    ]


def address(source: str) -> str:
    """The folder's address as it is asked for: a data set's is on the hub, at its revision.

    Raises:
        ConfigError: It is none.
    """
    dataset = _DATASET.fullmatch(source)
    if dataset:
        hub = os.environ.get("HF_ENDPOINT", HUB).rstrip("/")
        folder = (dataset["path"] or "").rstrip("/")
        return f"{hub}/datasets/{dataset['id']}/resolve/{dataset['revision']}{folder}"
    if urlsplit(source).scheme not in ("https", "http", "file"):
        raise ConfigError(
            f"{source} is no address: give https://..., file:///FOLDER, or "
            "hf://datasets/OWNER/NAME@REVISION"
        )
    return source.rstrip("/")


def _bring(path: Path, folder: str) -> str:
    """Fetch one file whole or not at all; returns where it came from."""
    source = f"{folder}/{path.name}"
    data = _read(source)
    if _sha256(data) != SHA256[path.name]:
        raise OutsideError(
            f"{source} is not the published file: its SHA-256 is {_sha256(data)[:12]}..., not "
            f"{SHA256[path.name][:12]}...; nothing was written"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{uuid4().hex}.part")
    try:
        half.write_bytes(data)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
    return source


def _read(source: str) -> bytes:
    parts = urlsplit(source)
    try:
        if parts.scheme == "file":
            return Path(unquote(parts.path)).read_bytes()
        answer = httpx.get(source, follow_redirects=True, timeout=SECONDS)
        answer.raise_for_status()
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise OutsideError(
            f"{source} cannot be had ({said}): look at the network, or name a copy with "
            "--from file:///FOLDER"
        ) from error
    return answer.content


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
