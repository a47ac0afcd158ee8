"""It learns through the whole path, store and coach and learner, and whatever the scores say."""

import asyncio

from flows.train import train
from mappa_core.app.config import TrainConfig
from mappa_core.app.services import Services, use
from mappa_core.store.store import Store
from tests.e2e.conftest import MakeServices
from tests.e2e.toy import AlphabetCoach, letter_share


def run(services: Services, config: TrainConfig) -> None:
    async def body() -> None:
        await services.engine.start()
        with use(services):
            await train(config)

    asyncio.run(body())


def mean_share(store: Store, iteration: int) -> float:
    """Of letters in what the held-out episodes say."""
    (newest, *_) = store.runs.list_runs()
    shares = [
        letter_share(store.episodes.get_episode(str(summary.id)).turns[0].action.text)
        for summary in store.episodes.list_episodes(newest.id)
        if (summary.phase, summary.iteration) == ("held_out", iteration)
    ]
    assert shares
    return sum(shares) / len(shares)


def test_a_team_learns_what_its_coach_likes(
    store: Store, make_services: MakeServices, toy_config: TrainConfig
) -> None:
    config = toy_config.model_copy(
        update={"evaluation": toy_config.evaluation.model_copy(update={"samples": 8})}
    )
    run(make_services(config), config)
    before, after = mean_share(store, 0), mean_share(store, config.rollout.iterations)
    assert after > before + 0.25
    # That it is the scores, and nothing else in the path, is seen where they say the opposite.
    run(make_services(config, AlphabetCoach(letters=False)), config)
    assert mean_share(store, 0) == before
    assert mean_share(store, config.rollout.iterations) < before - 0.1
