"""A command starts what takes longest first."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.tiny_model import save_tiny_model

# Says what is imported, and how often garbage was collected, when `step` of vLLM's fork server is
# taken, and ends there.
PROGRAM = """
import gc, sys
from mappa_cli.main import main
from mappa_core.models.serving.fork_server import ForkServer

def collections():
    return sum(each["collections"] for each in gc.get_stats())

before = collections()

def step(self, *_):
    print(sorted({"torch", "transformers", "prefect", "mlflow"} & set(sys.modules)))
    print(collections() - before < 20)
    sys.exit()

setattr(ForkServer, sys.argv[1], step)
if sys.argv[1] == "fork":
    ForkServer.start = lambda self: None
sys.argv[:2] = ["mappa", "train", "--config", "quickstart"]
main()
"""


@pytest.mark.parametrize("step", ["start", "fork"])
def test_servers_begin_before_a_run_imports_what_it_needs_itself(step: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, step, f"model={save_tiny_model(tmp_path / 'model')}"],
        env={**os.environ, "MAPPA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    # Torch says which type the CPU multiplies; a build that may see a GPU is asked for one as well.
    asked = step == "fork" or not version("torch").endswith("+cpu")
    expected = f"starting Prefect ...\n{['torch'] if asked else []}\nTrue\n"
    assert ran.stdout == expected, ran.stderr
