"""A command starts what takes longest first."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.tiny_model import save_tiny_model

# Says what is imported when vLLM's process is started, and ends there.
PROGRAM = """
import sys
from mappa_cli.main import main
from mappa_core.models.serving.fork_server import ForkServer

def start(self):
    print({"torch", "transformers", "prefect", "mlflow"} & set(sys.modules))
    sys.exit()

ForkServer.start = start
sys.argv[:1] = ["mappa", "train", "--config", "quickstart"]
main()
"""


def test_vllm_is_imported_for_a_run_before_what_the_run_imports_itself(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"model={save_tiny_model(tmp_path / 'model')}"],
        env={**os.environ, "MAPPA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    # A build of torch that may see a GPU has to be asked.
    first = set() if version("torch").endswith("+cpu") else {"torch"}
    assert ran.stdout == f"{first}\n", ran.stderr
