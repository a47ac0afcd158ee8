"""What is sent along with a run is all that the supervisor needs, and no more than that."""

import subprocess
import sys
import zipfile
from pathlib import Path

from mappa_core.rollout.sandboxes import remote

IMPORT_ALL = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    importlib.import_module(name)
print(*(name for name, module in sys.modules.items() if name.startswith("mappa_core")))
"""


def test_the_source_that_is_sent_runs_on_a_bare_python(tmp_path: Path) -> None:
    archive = tmp_path / "source.zip"
    archive.write_bytes(remote.source())
    with zipfile.ZipFile(archive) as packed:
        names = packed.namelist()
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in names
    }
    # -S: without site-packages, as in a container; -I: without this checkout.
    command = [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(archive), *sorted(modules)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert set(done.stdout.split()) == modules
    assert "mappa_core.rollout.sandboxes.supervisor.entrypoint" in modules
    assert "mappa_core.rollout.sandboxes.remote" not in modules
