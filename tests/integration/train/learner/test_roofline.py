"""What an update's products are counted and compared with."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mappa_core.train.learners import roofline
from mappa_core.train.learners.roofline import Products, measured


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SQUARES", (256,))


def test_products_of_all_threads_are_counted_and_nothing_else() -> None:
    left, right = torch.randn(64, 32), torch.randn(32, 16)

    def work() -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(torch.mm, left, right).result()
        left.exp_().softmax(dim=-1)
        torch.nn.functional.linear(left, right.T)

    made = measured(work, torch.float32)
    assert made.flops == 2 * (2 * 64 * 32 * 16)
    assert 0 < made.seconds < made.work_seconds
    assert made.dtype == "float32"
    assert made.peak > 1e8


def test_threads_that_compute_at_once_share_the_cores() -> None:
    square = torch.randn(512, 512)

    def work() -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(torch.mm, [square] * 8, [square] * 8))

    # So many that no other work beside it could make up for the difference.
    alone, shared = (measured(work, torch.float32, at_once=n) for n in (1, 1000))
    assert alone.flops == shared.flops == 8 * 2 * 512**3
    assert 0 < shared.seconds < alone.seconds / 20


def test_products_are_held_against_the_peak() -> None:
    made = Products(dtype="bfloat16", flops=6e9, seconds=2, work_seconds=3, peak=4e9)
    assert made.of_peak == 0.75
