"""Which third-party packages a program may import: ours, by name, and nothing beside them.

    "data-science" ─▶ distributions and all they require ─▶ {entry of site-packages: its path}

They are the very versions that the lock installed for MAPPA, shown read-only; what is not listed
here (torch, mlflow, database drivers) does not exist for a program.
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from mappa_core.core.errors import SandboxUnavailable

DATA_SCIENCE = ("numpy", "pandas", "scipy", "scikit-learn", "lightgbm")


def importable(names: Sequence[str]) -> Mapping[str, Path]:
    """The entries of site-packages that make the distributions `names` importable.

    Raises:
        SandboxUnavailable: One of them, or something it requires, is not installed here.
    """
    found: dict[str, Path] = {}
    waiting, known = list(names), set[str]()
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        installed = _installed(name)
        found |= _entries(installed)
        waiting += _required(installed)
    return dict(sorted(found.items()))


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise SandboxUnavailable(
            f"sandbox.runtime=data-science needs the package {name}: install the project's lock"
        ) from None


def _entries(installed: Distribution) -> dict[str, Path]:
    """Its top-level packages, modules and library folders; scripts lie elsewhere."""
    files = installed.files or []
    names = {file.parts[0] for file in files} - {"..", "__pycache__"}
    return {name: Path(str(installed.locate_file(name))).resolve() for name in names}


def _required(installed: Distribution) -> list[str]:
    requirements = [Requirement(text) for text in installed.requires or []]
    return [
        requirement.name
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
