import pytest
import torch

from mappa_core.train.config import MismatchConfig
from mappa_core.train.mismatch import (
    corrections,
    effective_share,
    sequence_mask,
)

LENGTHS = torch.tensor([2, 1])
TRAINER = torch.tensor([0.8, 0.2, 0.5]).log()
SAMPLER = torch.tensor([0.2, 0.4, 0.5]).log()
# ratios: 4, 0.5, 1; the first action's geometric mean is sqrt(2)


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
        # |log 2| = 0.693 is within the dead band, |log 4| is not.
        (MismatchConfig(threshold=8, dead_band=0.7), [4.0, 1.0, 1.0]),
        # The mean of (log 4, 0) is log 2.
        (MismatchConfig(threshold=8, dead_band=0.7, sequence_mask=1.9), [0.0, 0.0, 1.0]),
    ],
)
def test_what_is_corrected_is_configured(config: MismatchConfig, expected: list[float]) -> None:
    assert corrections(TRAINER, SAMPLER, LENGTHS, config).tolist() == pytest.approx(expected)


def test_an_engines_rounding_is_a_weight_of_one_to_the_bit() -> None:
    rounded = TRAINER + torch.tensor([9e-4, -9e-4, 3e-5])
    assert corrections(TRAINER, rounded, LENGTHS, MismatchConfig()).tolist() == [1.0, 1.0, 1.0]
    without = corrections(TRAINER, rounded, LENGTHS, MismatchConfig(dead_band=0))
    assert all(weight != 1.0 for weight in without.tolist())


def test_effective_share_by_hand() -> None:
    # ratios 3 and 1: 16 / (2 * 10)
    assert effective_share(4.0, 10.0, 2) == 0.8
    assert effective_share(5.0, 5.0, 5) == 1.0
