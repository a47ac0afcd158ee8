"""What a run's page says is to be done next."""

import pytest

from flows.pages import next_step
from mappa_core.evaluate.comparison import Comparison


def measured(difference: float, low: float, high: float) -> Comparison:
    return Comparison(
        problems=32,
        changed=12,
        episodes=64,
        before=0.5,
        after=0.5 + difference,
        difference=difference,
        low=low,
        high=high,
    )


BETTER, WORSE = measured(0.2, 0.1, 0.3), measured(-0.2, -0.3, -0.1)


@pytest.mark.parametrize(
    ("comparison", "verdict", "command"),
    [
        (BETTER, "equivalent", "mappa promote toy"),
        # What promotion would object to comes first.
        (BETTER, "cannot tell", "mappa audit toy --experiment 200"),
        (BETTER, "", "mappa audit toy"),
        (BETTER, "suspected", "mappa audit toy --experiment 200"),
        (BETTER, "biased", "mappa audit toy"),
        (WORSE, "equivalent", "mappa report toy"),
        # Two episodes a problem could not tell; four times as many may.
        (measured(0.0, -0.1, 0.1), "equivalent", "mappa evaluate toy evaluation.samples=8"),
    ],
)
def test_the_next_command_follows_from_gain_and_audit(
    comparison: Comparison, verdict: str, command: str
) -> None:
    assert next_step("toy", comparison, verdict)[0] == command
