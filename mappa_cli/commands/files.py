"""Files that people name for what a command writes."""

from pathlib import Path

from mappa_core.core.errors import ConfigError


def check_file(path: Path, option: str) -> None:
    """Refuse, before the work, a place where the result could not be written.

    Args:
        path: The file to be.
        option: Where it was named.

    Raises:
        ConfigError: Its folder does not exist, or it is one itself.
    """
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}, make it first")
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder: name a file in it")
