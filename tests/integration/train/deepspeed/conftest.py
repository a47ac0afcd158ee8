"""Ranks that the tests of a module share: what they do is said by each task."""

import copy
import functools
from collections.abc import Generator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners.deepspeed.learner import DeepspeedLearner
from tests.integration.train.deepspeed.updates import Gangs, Zero, spread
from tests.tiny_model import save_tiny_model


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def gangs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Gangs]:
    """Learners by the number of their ranks, which start when they are first asked for."""
    with ExitStack() as stack:

        @functools.cache
        def of(ranks: int) -> DeepspeedLearner:
            directory = tmp_path_factory.mktemp(f"ranks-{ranks}")
            learner = DeepspeedLearner(tiny_model, directory, spread(2, ranks), threads=1)
            return stack.enter_context(closing(learner))

        yield of


@pytest.fixture
def zero(gangs: Gangs, tmp_path: Path) -> Zero:
    """Make learners that share ranks with those of other tests."""

    def opened(config: LearnerConfig) -> DeepspeedLearner:
        learner = copy.copy(gangs(config.deepspeed.ranks))
        vars(learner).update(_directory=tmp_path / "zero", _config=config)
        return learner

    return opened
