"""What a run's coach is predicted to cost before it starts, against what the server then counts."""

import pytest

from mappa_cli.provider_stub.script import no_faults
from mappa_core.app.config import TrainConfig
from mappa_core.app.forecast import forecast_run, habits_of
from mappa_core.coach.budget import Usage, cost
from mappa_core.coach.config import CoachConfig
from mappa_core.coach.forecast import Forecast, Habits
from mappa_core.coach.rubrics import RubricSet
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.test_coach_outage import Trainer, rubric_folder, rubrics
from tests.e2e.toy import Cues, Monologue

__all__ = ["rubric_folder", "rubrics"]

PRICES = {"input_usd": 0.30, "cached_usd": 0.075, "output_usd": 2.50}


def toy_run(config: TrainConfig, folder: object, iterations: int) -> TrainConfig:
    coach = CoachConfig.model_validate(
        {"backend": "gemini", "model": "m", "rubric": str(folder), "prices": PRICES}
    )
    size = {"iterations": iterations, "episodes_per_problem": 8, "max_tokens": 24}
    return config.model_copy(
        update={"coach": coach, "rollout": config.rollout.model_copy(update=size)}
    )


@pytest.mark.slow
def test_a_real_run_costs_what_was_predicted(
    store: Store,
    toy_config: TrainConfig,
    make_services: MakeServices,
    rubrics: RubricSet,
    rubric_folder: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    small, whole = (toy_run(toy_config, rubric_folder, iterations) for iterations in (1, 2))

    def predicted(habits: Habits | None) -> Forecast:
        ((_, expected),) = forecast_run(whole, Monologue(), Cues(), habits)
        return expected

    blind = predicted(None)
    Trainer(make_services, small, rubrics)(no_faults)
    informed = predicted(habits_of(store, store.runs.list_runs()[0]))
    log = Trainer(make_services, whole, rubrics)(no_faults).log
    counted = Usage(prompt=log.prompt_tokens, cached=log.cached_tokens, reply=log.reply_tokens)
    paid = cost(counted, whole.coach.prices).usd
    for name, expected in (("blind", blind), ("informed", informed)):
        assert expected.calls == pytest.approx(log.calls, rel=0.2), name
        assert expected.tokens == pytest.approx(counted.total, rel=0.2), name
    # Dollars are mostly replies here, and how long this coach's are is known from its last run.
    assert informed.cost_usd == pytest.approx(paid, rel=0.2)
