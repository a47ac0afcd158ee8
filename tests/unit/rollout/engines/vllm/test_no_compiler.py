import os
import subprocess
import sys

from mappa_core.models.serving.command import environment

# As vLLM's sampler does to rank a token.
COMPILED = "import torch; print(int(torch.compile(lambda x: (x >= 2).sum())(torch.arange(5))))"


def test_a_machine_without_a_compiler_can_sample() -> None:
    without = environment(os.environ | {"PATH": "/nowhere"}, device="cpu")
    ran = subprocess.run(
        [sys.executable, "-c", COMPILED], env=without, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "3\n", ran.stderr[-500:]
