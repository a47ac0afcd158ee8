"""What an update's products are counted and compared with."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from mappa_core.train.learners import roofline
from mappa_core.train.learners.roofline import Peak, Products, measured, peak


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "SQUARES", (256,))


def test_products_of_all_threads_are_counted_by_type_and_nothing_else() -> None:
    left, right = torch.randn(64, 32), torch.randn(32, 16)
    onto = torch.zeros(64, 16, dtype=torch.bfloat16)

    def work() -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(torch.mm, left, right).result()
        left.exp_().softmax(dim=-1).mul(3).add(left)
        torch.nn.functional.linear(left, right.T, torch.zeros(16))
        onto.addmm_(left.bfloat16(), right.bfloat16())
        torch.bmm(left.view(2, 32, 32), right.expand(2, 32, 16))

    made = measured(work)
    one = 2 * 64 * 32 * 16
    assert made.flops == {"float32": 3 * one, "bfloat16": one}
    assert 0 < made.seconds < made.work_seconds
    assert made.peaks.keys() == made.flops.keys()
    assert all(1e8 < peak.kept_up <= peak.best for peak in made.peaks.values())


def test_threads_that_compute_at_once_share_the_cores() -> None:
    square = torch.randn(512, 512)

    def work() -> None:
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(torch.mm, [square] * 8, [square] * 8))

    # So many that no other work beside it could make up for the difference.
    alone, shared = (measured(work, at_once=n) for n in (1, 1000))
    assert alone.flops == shared.flops == {"float32": 8 * 2 * 512**3}
    assert 0 < shared.seconds < alone.seconds / 20


def test_each_type_is_held_against_its_own_peak() -> None:
    made = Products(
        flops={"bfloat16": 6e9, "float32": 1e9},
        seconds=4,
        work_seconds=9,
        peaks={
            "bfloat16": Peak(kept_up=6e9, best=9e9),
            "float32": Peak(kept_up=0.5e9, best=1e9),
        },
    )
    assert made.least_seconds == 1 + 2


def test_a_peak_lasts_as_long_as_what_is_compared_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One product takes a second and the next one three.
    now = iter((0.0, 0.0, 1.0, 5.0, 5.0, 8.0, 11.0))
    monkeypatch.setattr(roofline, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    assert peak(torch.float32, 10.0) == Peak(kept_up=2 * 256**3 / 2, best=2 * 256**3)
