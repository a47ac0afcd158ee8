"""What a learner lacks is said when it is opened, not by its first update."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mappa_core.core.errors import ConfigError
from mappa_core.train.config import LearnerConfig
from mappa_core.train.learners import open_learner


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    config = LearnerConfig(backend="deepspeed", device="cpu")
    with ExitStack() as stack, pytest.raises(ConfigError, match="needs the package deepspeed"):
        open_learner(config, "model", tmp_path, stack, gpus=())
