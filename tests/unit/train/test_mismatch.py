import math

import pytest
import torch

from mappa_core.train.config import GuardConfig, MismatchConfig
from mappa_core.train.guard import out_of_band
from mappa_core.train.mismatch import (
    corrections,
    effective_share,
    kl_of_sampler,
    sequence_mask,
    truncated,
)

LENGTHS = torch.tensor([2, 1])
TRAINER = torch.tensor([0.8, 0.2, 0.5]).log()
SAMPLER = torch.tensor([0.2, 0.4, 0.5]).log()
# ratios: 4, 0.5, 1; the first action's geometric mean is sqrt(2)


def test_truncated_importance_by_hand() -> None:
    assert truncated(TRAINER - SAMPLER, 2.0).tolist() == pytest.approx([2.0, 0.5, 1.0])


def test_sequence_mask_by_hand() -> None:
    assert sequence_mask(TRAINER - SAMPLER, LENGTHS, 1.5).tolist() == [1.0, 1.0, 1.0]
    assert sequence_mask(TRAINER - SAMPLER, LENGTHS, 1.4).tolist() == [0.0, 0.0, 1.0]
    assert sequence_mask(SAMPLER - TRAINER, LENGTHS, 1.4).tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MismatchConfig(), [2.0, 0.5, 1.0]),
        (MismatchConfig(importance="none"), [1.0, 1.0, 1.0]),
        (MismatchConfig(importance="none", sequence_mask=1.4), [0.0, 0.0, 1.0]),
        (MismatchConfig(threshold=8, sequence_mask=1.5), [4.0, 0.5, 1.0]),
    ],
)
def test_what_is_corrected_is_configured(config: MismatchConfig, expected: list[float]) -> None:
    assert corrections(TRAINER, SAMPLER, LENGTHS, config).tolist() == pytest.approx(expected)


def test_the_samplers_kl_by_hand() -> None:
    # r - 1 - ln r at 4, 0.5, 1
    expected = [3 - math.log(4), -0.5 + math.log(2), 0.0]
    assert kl_of_sampler(TRAINER - SAMPLER).tolist() == pytest.approx(expected, abs=1e-6)


def test_effective_share_by_hand() -> None:
    # ratios 3 and 1: 16 / (2 * 10)
    assert effective_share(4.0, 10.0, 2) == 0.8
    assert effective_share(5.0, 5.0, 5) == 1.0


def test_the_guard_names_the_figure_and_its_bound() -> None:
    guard = GuardConfig(mismatch_kl_max=0.1, entropy_min=0.5)
    assert out_of_band({"mismatch_kl": 0.05, "entropy": 0.6, "grad_norm": 99.0}, guard) is None
    assert out_of_band({"mismatch_kl": 0.25}, guard) == (
        "mismatch_kl 0.25 is above algorithm.guard.mismatch_kl_max=0.1"
    )
    assert out_of_band({"entropy": 0.25}, guard) == (
        "entropy 0.25 is below algorithm.guard.entropy_min=0.5"
    )
    assert out_of_band({"entropy": 0.25, "mismatch_kl": 9.0}, GuardConfig()) is None
