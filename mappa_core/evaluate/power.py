"""Could a planned comparison show a gain, if there is one? Answered by playing it out.

Problems differ: their success rates before are drawn from a Beta distribution. A gain moves all of
them by one amount on the logit scale. Each simulated comparison is judged as a real one would be.
"""

from uuid import UUID

import numpy as np

from mappa_core.evaluate.comparison import compare

CONCENTRATION = 1.0
"""a + b of the Beta distribution: competition problems are mostly solved always or never."""
BISECTIONS = 50
WIDEST_SHIFT = 20.0


def power(
    *,
    problems: int,
    samples: int,
    before: float,
    gain: float,
    simulations: int = 200,
    resamples: int = 400,
    seed: int = 0,
) -> float:
    """Share of simulated comparisons with the verdict `better`.

    Args:
        problems: Held out, each played before and after.
        samples: Episodes per problem on each side.
        before: Mean success rate before, in (0, 1).
        gain: True difference of the mean success rates; 0 gives the rate of false alarms.
        simulations: Comparisons played out.
        resamples: Bootstrap resamples of each.
        seed: Of the simulation.
    """
    generator = np.random.default_rng(seed)
    names = [UUID(int=number) for number in range(problems)]
    better = 0
    for number in range(simulations):
        rates = generator.beta(
            CONCENTRATION * before, CONCENTRATION * (1 - before), size=problems
        ).clip(1e-6, 1 - 1e-6)
        sides = [
            generator.random((problems, samples)) < chance[:, None]
            for chance in (rates, _shifted(rates, gain))
        ]
        earlier, later = (dict(zip(names, side.tolist(), strict=True)) for side in sides)
        verdict = compare(earlier, later, resamples=resamples, seed=number).verdict
        better += verdict == "better"
    return better / simulations


def _shifted(rates: np.ndarray, gain: float) -> np.ndarray:
    """The rates, all moved on the logit scale so that their mean rises by `gain`."""
    logits = np.log(rates / (1 - rates))
    target = min(float(rates.mean()) + gain, 1 - 1e-6)
    low, high = 0.0, WIDEST_SHIFT
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if float((1 / (1 + np.exp(-(logits + middle)))).mean()) < target:
            low = middle
        else:
            high = middle
    return rates if gain == 0 else 1 / (1 + np.exp(-(logits + high)))
