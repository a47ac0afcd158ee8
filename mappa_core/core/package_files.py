"""Finds the folders that the wheel carries inside the package and a checkout has at its top."""

from pathlib import Path
from typing import Literal

import mappa_core

_INSTALLED = {"migrations": "store/migrations", "configs": "app/configs"}
"""Where the wheel has them; `pyproject.toml` puts them there."""


def package_folder(name: Literal["migrations", "configs"]) -> Path:
    """Find Alembic's revisions or the presets, installed or in a checkout."""
    package = Path(mappa_core.__file__).parent
    installed = package / _INSTALLED[name]
    return installed if installed.is_dir() else package.parent / name
