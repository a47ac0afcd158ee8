"""What a run's coaching is said to cost before it starts, against what the server then counts."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from mappa_cli.provider_stub.server import ProviderStub, serving
from mappa_core.app.config import TrainConfig
from mappa_core.app.forecast import forecast_run
from mappa_core.coach.budget import Budget, Usage, cost
from mappa_core.coach.case import case_of
from mappa_core.coach.forecast import Forecast, assumed_turn
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.providers.gemini import gemini_provider
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.core import ids
from mappa_core.core.records.episodes import Episode
from mappa_core.core.records.scores import CoachCase, LabelVisibility
from mappa_core.rollout.episode import new_episode
from mappa_core.rollout.problems import problem_source
from mappa_core.rollout.problems.drawing import problems_of_iteration
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team

VALUES = {
    "rollout": {"iterations": 2, "problems": 6, "episodes_per_problem": 2, "max_tokens": 96},
    "coach": {
        "backend": "gemini",
        "model": "m",
        "prices": {"input_usd": 0.30, "cached_usd": 0.075, "output_usd": 2.50},
    },
}
VOCABULARY = (
    "so",
    "we",
    "add",
    "14",
    "and",
    "27",
    "to",
    "get",
    "pens",
    "print",
    "(x)",
    "= y",
    "\n",
)


def played(team: Team, episode: Episode, source: Random) -> Episode:
    """An episode whose agents write as much as they like, and whose programs sometimes fail."""
    runs_code = {agent.name: agent.runs_code for agent in team.agents}
    index = 0
    while (observation := team.next_observation(episode)) is not None:
        turn = assumed_turn(
            observation, index, episode.run_id, 96, runs_code=runs_code[observation.agent]
        )
        words = [source.choice(VOCABULARY) for _ in range(source.randint(5, 96))]
        turn = replace(turn, action=replace(turn.action, text=" ".join(words)))
        if turn.tool_result is not None and source.random() < 0.2:
            turn = replace(turn, tool_result=replace(turn.tool_result, stdout=""))
        episode, index = episode.with_turn(turn), index + 1
    return episode


def cases_of(config: TrainConfig, team: Team) -> list[CoachCase]:
    source = Random(7)
    train = problem_source(config.problems).train()
    run_id = ids.content_id("run", "forecast test")
    episodes = [
        played(team, new_episode(run_id, "train", iteration, problem, rollout), source)
        for iteration in (1, 2)
        for problem in problems_of_iteration(train, iteration, 6, config.seed)
        for rollout in (0, 1)
    ]
    return [
        case_of(episode, turn, LabelVisibility.NEVER)
        for episode in episodes
        for turn in episode.turns
    ]


@pytest.mark.parametrize("prompts", ["small-1", "paper-1"])
def test_the_forecast_is_within_twenty_percent_of_what_the_server_counts(
    prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    config = TrainConfig.model_validate(VALUES | {"prompts": prompts})
    team = load_team("mathchat", prompts)
    ((_, expected),) = forecast_run(config, team, problem_source(config.problems))
    cases = cases_of(config, team)

    async def body() -> ProviderStub:
        stand_in = ProviderStub()
        async with serving(stand_in) as address:
            model = config.coach.model_copy(update={"base_url": address})
            rubrics = load_rubrics("mathchat", "paper-1")
            coach = LlmCoach(
                gemini_provider(model, "key"), rubrics, model, Budget(config.coach.budget)
            )
            await asyncio.gather(*(coach.score(case) for case in cases))
            await coach.close()
        return stand_in

    log = asyncio.run(body()).log
    usage = Usage(prompt=log.prompt_tokens, cached=log.cached_tokens, reply=log.reply_tokens)
    assert expected.calls == pytest.approx(log.calls, rel=0.2)
    assert expected.tokens == pytest.approx(usage.total, rel=0.2)
    assert expected.cost_usd == pytest.approx(cost(usage, config.coach.prices).usd, rel=0.2)


def test_repeats_and_a_second_coach_are_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    second = {"backend": "gemini", "model": "other", "share": 0.25}
    coach = VALUES["coach"] | {"repeats": 2, "second": second}  # type: ignore[operator]
    config = TrainConfig.model_validate(VALUES | {"coach": coach})
    team = load_team("mathchat", "small-1")
    (first, opinion) = forecast_run(config, team, problem_source(config.problems))
    # 2 iterations x 6 problems x 2 episodes x 3 agents, twice each.
    assert (first[0], round(first[1].calls)) == ("coach m", 144)
    assert (opinion[0], round(opinion[1].calls)) == ("second coach other", 18)


def test_a_local_coach_costs_nothing_and_a_provider_beside_it_its_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    prices = {"input_usd": 1.0, "output_usd": 10.0}
    second = {"backend": "gemini", "model": "other", "share": 0.25, "prices": prices}
    coach = {"backend": "local", "model": "judge", "prices": prices, "second": second}
    config = TrainConfig.model_validate(VALUES | {"coach": coach})
    team = load_team("mathchat", "small-1")
    ((_, ours), (_, theirs)) = forecast_run(config, team, problem_source(config.problems))
    assert (ours.tokens > 0, ours.cost_usd) == (True, 0)
    assert theirs.cost_usd > 0


def test_forecasts_add_up() -> None:
    one = Forecast(calls=1, prompt_tokens=10, reply_tokens=2, cost_usd=0.5)
    assert one + one == one.times(2)
    assert one.tokens == 12


def test_a_reply_is_taken_to_be_as_long_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    replies: list[float] = []
    for expected_reply_tokens in (150, 600):
        coach = {**VALUES["coach"], "expected_reply_tokens": expected_reply_tokens}
        config = TrainConfig.model_validate(VALUES | {"coach": coach})
        team = load_team(config.team, config.prompts)
        ((_, found),) = forecast_run(config, team, problem_source(config.problems))
        replies.append(found.reply_tokens / found.calls)
    assert replies == [150, 600]
