"""Several samples of one problem: pass@k and the majority's answer.

    pass@k = mean over problems of 1 - C(n - c, k) / C(n, k)

for n samples of which c are right (Chen et al. 2021, arXiv 2107.03374, equation 1): the unbiased
estimate of the chance that at least one of k samples is right. Taking the best of the first k
samples instead would be unbiased too, but noisier; 1 - (1 - c/n)^k is biased.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb
from uuid import UUID


def pass_at_k(outcomes: Mapping[UUID, Sequence[bool]], k: int) -> float:
    """The estimate over problems, in [0, 1].

    Args:
        outcomes: Success of each problem's samples.
        k: Samples a user would draw.

    Raises:
        ValueError: There is no problem, or one has fewer than `k` samples.
    """
    if k < 1 or not outcomes or min(map(len, outcomes.values())) < k:
        raise ValueError(f"pass@{k} needs at least {max(k, 1)} samples of every problem")
    return sum(_of_problem(samples, k) for samples in outcomes.values()) / len(outcomes)


def _of_problem(samples: Sequence[bool], k: int) -> float:
    total, wrong = len(samples), len(samples) - sum(samples)
    return 1 - comb(wrong, k) / comb(total, k)


def majority(answers: Sequence[str | None]) -> str | None:
    """The most frequent answer; None where no sample answered. The earliest wins a tie.

    Args:
        answers: Of one problem's samples, in order; None for a sample without an answer.
    """
    given = Counter(answer for answer in answers if answer is not None)
    return given.most_common(1)[0][0] if given else None
