"""Could a planned comparison show a gain, if there is one? Answered by playing it out.

Problems differ: their success rates before are drawn from a Beta distribution. A gain moves all of
them by one amount on the logit scale. Each simulated comparison is judged as a real one would be.
"""

from uuid import UUID

import numpy as np

from mappa_core.evaluate.comparison import compare

CONCENTRATION = 1.0
"""a + b of the Beta distribution: competition problems are mostly solved always or never."""
WIDEST_SHIFT = 40.0


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
    if gain <= 0:
        return rates
    from scipy import optimize, special  # half a second, for few commands

    logits, target = special.logit(rates), min(float(rates.mean()) + gain, 1 - 1e-6)

    def above(shift: float) -> float:
        return float(special.expit(logits + shift).mean()) - target

    return special.expit(logits + optimize.brentq(above, 0, WIDEST_SHIFT, xtol=1e-13))
