"""Which coaches are asked only after a person agreed."""

from typing import Any

import pytest

from mappa_core.coach.config import CoachModelConfig
from mappa_core.coach.forecast import Forecast
from mappa_core.coach.opening import may_cost

SERVED = {"backend": "openai", "model": "judge", "base_url": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    ("coach", "cost_usd", "asked"),
    [
        ({"backend": "rule"}, 0.0, False),
        ({"backend": "local", "model": "judge"}, 0.0, False),
        (SERVED, 0.0, False),
        (SERVED, 0.5, True),
        ({"backend": "gemini", "model": "gemini-2.5-pro"}, 0.0, True),
        ({"backend": "openai", "model": "gpt-5"}, 0.0, True),
    ],
)
def test_a_coach_that_may_cost_money_is_asked_after_a_person_agreed(
    coach: dict[str, Any], cost_usd: float, asked: bool
) -> None:
    config = CoachModelConfig.model_validate(coach)
    assert may_cost(config, Forecast(calls=48, cost_usd=cost_usd)) == asked
