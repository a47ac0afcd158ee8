"""What this machine offers before anything is opened."""

import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

from mappa_core.core.errors import DiskFull
from mappa_core.core.settings import Settings
from mappa_core.rollout.sandboxes.choose import choose_sandbox

SPARE_BYTES = 2 * 2**30
"""Free space asked for before a run starts: a converted model, merged weights, checkpoints."""


def check_space(directory: Path, spare_bytes: int = SPARE_BYTES) -> None:
    """Refuse to start on a disk that will fill up half way.

    Raises:
        DiskFull: Less than `spare_bytes` are free where `directory` lies or will lie.
    """
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < spare_bytes:
        raise DiskFull(
            f"{existing} has {free / 2**30:.1f} GiB free and a run needs {spare_bytes / 2**30:.0f}:"
            " make room, or point MAPPA_HOME at a larger disk"
        )


async def sandbox_tier(settings: Settings) -> str:
    """The isolation that `auto` takes on this machine, by trying it."""
    sandbox = await choose_sandbox(
        "auto", 1, fusion_url=settings.sandboxfusion_url, image=settings.sandbox_image
    )
    await sandbox.close()
    return sandbox.tier


def code_version() -> str:
    """The package's version, and the commit where it runs from a checkout."""
    package = version("mappa")
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return package
    described = subprocess.run(
        ["git", "-C", str(checkout), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{package}+{described.stdout.strip()}" if described.returncode == 0 else package
