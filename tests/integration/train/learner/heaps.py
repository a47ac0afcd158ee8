"""Prints how many heaps the C library has before and after an update: MODEL CHECKPOINTS."""

import ctypes
import re
import sys
from pathlib import Path

from mappa_core.train.config import AlgorithmConfig
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.integration.train.learner.conftest import SMALL
from tests.integration.train.learner.samples import BASE, actions, samples


def heaps(directory: Path) -> int:
    library, report = ctypes.CDLL(None), directory / "heaps.xml"
    library.fopen.restype = ctypes.c_void_p
    file = ctypes.c_void_p(library.fopen(bytes(report), b"w"))
    library.malloc_info(0, file)
    library.fclose(file)
    return len(re.findall("<heap ", report.read_text()))


def main(model: str, directory: str) -> None:
    checkpoints = Path(directory)
    config = SMALL.model_copy(update={"micro_batch_tokens": 64})
    learner = TorchLearner(Path(model), checkpoints, config, threads=2)
    acted = actions(6)
    before = heaps(checkpoints)
    batch = samples(acted, learner.logprobs(BASE, acted), [1.0, -1.0, 0.5, -0.5, 0.0, 2.0])
    learner.update(BASE, batch, AlgorithmConfig(loss_over="samples"), total_steps=4, seed=3)
    assert learner.passes.at_once == 2
    sys.stdout.write(f"{before} {heaps(checkpoints)}")


main(*sys.argv[1:])
