from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from mappa_core.train.config import LearnerConfig, LoraConfig
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.tiny_model import save_tiny_model

SMALL = LearnerConfig(
    device="cpu", dtype="float32", lora=LoraConfig(rank=4, alpha=8), learning_rate=1e-2
)

MakeLearner = Callable[..., TorchLearner]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """A tiny model is slower on many threads than on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def make_learner(tiny_model: Path, tmp_path: Path) -> MakeLearner:
    """A learner on the tiny model; settings override those of a small default."""

    def make(*, threads: int = 1, **settings: object) -> TorchLearner:
        config = SMALL.model_copy(update=settings)
        return TorchLearner(tiny_model, tmp_path / "checkpoints", config, threads=threads)

    return make
