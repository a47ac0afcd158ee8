"""Passes beside each other: whose gradient is added when, and what becomes of one that fails."""

import json
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch

from mappa_core.train.learners.passes import Passes
from mappa_core.train.learners.torch_learner import TorchLearner
from tests.integration.train.learner.conftest import SMALL

BIG = 1e8
"""To which float32 cannot add 1."""


@pytest.fixture
def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(()))


def size_of(_: float) -> int:
    return 10


def test_gradients_are_added_in_the_passes_order(parameter: torch.nn.Parameter) -> None:
    passes = Passes([parameter], threads=2, budget_tokens=20)
    given = [BIG, 1.0, -BIG, 2.0]

    def work(factor: float) -> int:
        # The later of two that run at once is ready first.
        time.sleep(0.05 if abs(factor) == BIG else 0)
        (factor * parameter).backward()
        return threading.get_ident()

    threads = passes.run(work, given, size_of)
    assert len(set(threads)) == 2
    # ((BIG + 1) - BIG) + 2; in any order that takes 1 after -BIG it is 3.
    assert parameter.grad is not None
    assert float(parameter.grad) == 2.0


@pytest.mark.parametrize("threads", [1, 2])
def test_the_largest_come_first(parameter: torch.nn.Parameter, threads: int) -> None:
    passes = Passes([parameter], threads=threads, budget_tokens=20)
    begun: list[int] = []
    given = [3, 30, 9, 4, 40, 9]
    assert passes.run(lambda size: begun.append(size) or size, given, int) == sorted(given)[::-1]
    assert sorted(begun) == sorted(given)
    if threads == 1:
        assert begun == [40, 30, 9, 9, 4, 3]


def test_one_that_is_larger_than_its_share_runs_alone(parameter: torch.nn.Parameter) -> None:
    passes = Passes([parameter], threads=2, budget_tokens=20)
    torch.set_num_threads(2)
    inside, most = [0.0], dict[float, tuple[int, int]]()

    def work(size: float) -> None:
        inside.append(size)
        time.sleep(0.05)
        most[size] = len(inside) - 1, torch.get_num_threads()
        parameter.mul(size).backward()
        inside.remove(size)

    passes.run(work, [9.0, 30.0, 10.0, 11.0], int)
    torch.set_num_threads(1)
    assert (most[30.0], most[11.0]) == ((1, 2), (1, 2))
    assert (most[9.0][1], most[10.0][1]) == (1, 1)
    assert parameter.grad is not None
    assert float(parameter.grad) == 60.0


def test_a_pass_that_fails_holds_up_no_other(parameter: torch.nn.Parameter) -> None:
    other = torch.nn.Parameter(torch.zeros(()))
    passes = Passes([parameter, other], threads=2, budget_tokens=20)
    ended: list[float] = []

    def work(factor: float) -> None:
        if factor == 0:
            time.sleep(0.05)
            raise ArithmeticError("no")
        # Not every pass reaches every parameter.
        (factor * (parameter if factor == 1 else other)).backward()
        ended.append(factor)

    with pytest.raises(ArithmeticError, match="no"):
        passes.run(work, [0.0, 1.0, 2.0], size_of)
    assert sorted(ended) == [1.0, 2.0]
    parameter.grad = None
    passes.run(work, [1.0, 2.0, 1.0], size_of)
    assert parameter.grad is not None
    assert float(parameter.grad) == 2.0


def test_a_model_that_turns_by_the_longest_sequence_has_one_pass_at_a_time(
    tiny_model: Path, tmp_path: Path
) -> None:
    plain = TorchLearner(tiny_model, tmp_path, SMALL, threads=2)
    assert plain.passes.at_once == 2
    config = json.loads((tiny_model / "config.json").read_text())
    theta = config["rope_parameters"]["rope_theta"]
    config["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": theta}
    stretched = shutil.copytree(tiny_model, tmp_path / "stretched")
    (stretched / "config.json").write_text(json.dumps(config))
    assert TorchLearner(stretched, tmp_path, SMALL, threads=2).passes.at_once == 1
