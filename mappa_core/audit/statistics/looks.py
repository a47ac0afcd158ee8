"""Keeps the chance of a false alarm at 5 % however often a growing run is audited.

    share of the 5 % that look k may spend = 0.8 for the first, 0.2 / (k (k - 1)) for later ones

which add up to one, so that an honest coach is ever accused in at most 5 % of runs (Lan & DeMets
1983, with a spending function that knows no last look). Most is spent at once: most runs are
audited once, and later looks have more data.
"""

FIRST = 0.8
"""Of the whole, spent by the first look."""


def spent(look: int) -> float:
    """The share of the chance of a false alarm that one look may spend, in (0, 1].

    Args:
        look: Its number, from 1.
    """
    return FIRST if look == 1 else (1 - FIRST) / (look * (look - 1))
