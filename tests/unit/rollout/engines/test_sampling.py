"""Drawing one token, against chances worked by hand."""

import math
from collections import Counter

import pytest
import torch

from mappa_core.core.records.episodes import Sampling
from mappa_core.rollout.engines.transformers.sampling import next_token

# Chances of 1/2, 1/4, 1/8 and 1/8 at temperature 1.
LOGITS = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()


def draw(count: int, *, temperature: float = 1.0, top_p: float = 1.0) -> Counter[int]:
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=1)
    return Counter(next_token(LOGITS, sampling, generator)[0] for _ in range(count))


@pytest.mark.parametrize(
    ("temperature", "chances"),
    [
        (0.0, (1 / 2, 1 / 4, 1 / 8, 1 / 8)),
        (0.5, (16 / 22, 4 / 22, 1 / 22, 1 / 22)),
        (1.0, (1 / 2, 1 / 4, 1 / 8, 1 / 8)),
    ],
)
def test_the_logprob_is_that_of_the_temperature_before_a_nucleus(
    temperature: float, chances: tuple[float, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(temperature=temperature, top_p=0.6, max_tokens=1)
    token, logprob = next_token(LOGITS + 3, sampling, generator)
    assert logprob == pytest.approx(math.log(chances[token]), abs=1e-6)


def test_tokens_come_as_often_as_they_should() -> None:
    counts = draw(4000)
    assert counts[0] / 4000 == pytest.approx(0.5, abs=0.03)
    assert counts[3] / 4000 == pytest.approx(0.125, abs=0.02)


def test_half_the_temperature_squares_the_chances() -> None:
    # 16 : 4 : 1 : 1, so the first has 16 of 22.
    assert draw(4000, temperature=0.5)[0] / 4000 == pytest.approx(16 / 22, abs=0.03)


def test_the_nucleus_is_the_fewest_tokens_that_have_the_mass() -> None:
    assert set(draw(500, top_p=0.5)) == {0}
    assert set(draw(500, top_p=0.6)) == {0, 1}
    assert set(draw(500, top_p=0.75)) == {0, 1}
    assert len(draw(500, top_p=0.8)) == 3


def test_temperature_zero_is_greedy() -> None:
    assert draw(50, temperature=0.0) == {0: 50}
