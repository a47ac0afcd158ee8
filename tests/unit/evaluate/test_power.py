from mappa_core.evaluate.power import power


def chance(gain: float, problems: int = 40) -> float:
    return power(
        problems=problems, samples=4, before=0.5, gain=gain, simulations=100, resamples=200
    )


def test_no_gain_is_seldom_seen_and_a_large_one_nearly_always() -> None:
    assert chance(0.0) <= 0.08
    assert chance(0.25) >= 0.95


def test_more_problems_see_more() -> None:
    assert chance(0.08, problems=15) < chance(0.08, problems=120)
