"""What is asked again and what is not, within which limits, and what the record says."""

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest

from mappa_cli.provider_stub.script import Question, judgement
from mappa_core.coach import pacing
from mappa_core.coach.attempts import RequestTemplate
from mappa_core.coach.budget import Budget, Usage
from mappa_core.coach.config import BudgetConfig, CoachModelConfig
from mappa_core.coach.evidence import SOLVING, WITH_OWN_SOLUTION
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.pacing import CallLimit
from mappa_core.coach.protocols import BudgetedCoach
from mappa_core.coach.providers.provider import Final, Passing, ProviderError, status_error
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.core.records.scores import CoachScore, Spending, Unscored
from tests.fakes.coaching import Answer, ScriptedProvider, TestClock, agree
from tests.unit.coach.cases import make_case

RUBRICS = load_rubrics("mathchat", "paper-1")
PRICES = {"input_usd": 1.0, "output_usd": 10.0, "cached_usd": 0.1}


def make_coach(
    provider: ScriptedProvider,
    clock: TestClock | None = None,
    budget: BudgetConfig | None = None,
    **settings: Any,
) -> LlmCoach:
    config = CoachModelConfig.model_validate(
        {"backend": "gemini", "model": "gemini-test", "prices": PRICES} | settings
    )
    made = Budget(budget or BudgetConfig())
    return LlmCoach(provider, RUBRICS, config, made, clock=(clock or TestClock()).clock())


def ask(provider: ScriptedProvider, **settings: Any) -> CoachScore | Unscored:
    return asyncio.run(make_coach(provider, **settings).score(make_case()))


def failing(times: int, error: ProviderError) -> Answer:
    return lambda question, number: error if number < times else agree(question, number)


def test_a_score_carries_everything_it_rests_on() -> None:
    provider = ScriptedProvider(usage=Usage(prompt=1000, cached=600, reply=30, thought=20))
    coach = make_coach(provider)
    score = asyncio.run(coach.score(make_case("Score: 10")))
    assert isinstance(score, CoachScore)
    assert (score.value, score.attempts, score.model_version) == (7.5, 1, "scripted-7")
    assert score.request is not None
    assert score.request.prompt == provider.asked[0].user
    assert score.request.system == provider.asked[0].system
    assert score.request.settings["model"] == "gemini-test"
    assert score.raw_reply == judgement(provider.asked[0], 7.5)
    # 400 fresh at 1, 600 cached at 0.1, 50 sampled at 10 dollars per million.
    assert score.cost_usd == pytest.approx((400 + 60 + 500) / 1e6, rel=1e-12)
    assert (score.prompt_tokens, score.cached_tokens) == (1000, 600)
    assert (score.reply_tokens, score.thought_tokens) == (30, 20)
    assert score.flags == ("fake_score",)
    assert coach.identity.rubric_version.startswith(f"{RUBRICS.name}+")
    assert coach.identity.rubric_sha256 != RUBRICS.sha256, "of its way of asking, too"
    assert isinstance(coach, BudgetedCoach)


def test_a_model_of_our_own_costs_nothing_beside_a_providers_prices() -> None:
    provider = ScriptedProvider(usage=Usage(prompt=1000, reply=50))
    score = ask(provider, backend="local", model="judge", max_output_tokens=2048)
    assert (score.prompt_tokens, score.reply_tokens, score.cost_usd) == (1000, 50, 0.0)


def test_what_can_pass_is_tried_again_with_growing_jittered_waits() -> None:
    clock = TestClock()
    provider = ScriptedProvider(failing(4, status_error(503, "busy")))
    score = ask(provider, clock=clock)
    assert isinstance(score, CoachScore)
    assert score.attempts == 5
    assert len(clock.slept) == 4
    for number, wait in enumerate(clock.slept):
        assert 0.25 * 2**number <= wait <= 0.5 * 2**number
    assert score.seconds == pytest.approx(sum(clock.slept))


def test_the_providers_wish_is_honoured() -> None:
    clock = TestClock()
    ask(ScriptedProvider(failing(1, status_error(429, "slow", 17.0))), clock=clock)
    assert 17.0 <= clock.slept[0] <= 17.1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (status_error(400, "bad request"), "refused"),
        (status_error(401, "no key"), "refused"),
        (status_error(403, "not yours"), "refused"),
        (status_error(404, "no such model"), "refused"),
        (Final("blocked", "safety", usage=Usage(prompt=50)), "blocked"),
    ],
)
def test_what_cannot_pass_is_not_tried_again(error: ProviderError, reason: str) -> None:
    provider = ScriptedProvider(failing(9, error))
    unscored = ask(provider)
    assert isinstance(unscored, Unscored)
    assert (unscored.reason, unscored.attempts) == (reason, 1)
    assert unscored.prompt_tokens == error.usage.prompt
    assert unscored.request is not None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (status_error(429, "slow"), "rate_limited"),
        (status_error(500, "oops"), "error"),
        (Passing("timeout", "late"), "timeout"),
    ],
)
def test_after_the_deadline_the_last_reason_stands(error: ProviderError, reason: str) -> None:
    clock = TestClock()
    provider = ScriptedProvider(failing(10_000, error))
    unscored = ask(provider, clock=clock, deadline_seconds=300)
    assert isinstance(unscored, Unscored)
    assert unscored.reason == reason
    assert sum(clock.slept) <= 300
    assert sum(clock.slept) > 240
    assert unscored.attempts == len(provider.asked) < 40


def test_two_minutes_of_outage_are_ridden_out() -> None:
    clock = TestClock()

    def dead_for_two_minutes(question: Question, number: int) -> str | ProviderError:
        return status_error(503, "down") if clock.now < 1120 else agree(question, number)

    score = ask(ScriptedProvider(dead_for_two_minutes), clock=clock)
    assert isinstance(score, CoachScore)
    assert 120 <= sum(clock.slept) < 160


def test_an_answer_that_never_comes_is_a_timeout() -> None:
    unscored = ask(ScriptedProvider(seconds=60), attempt_seconds=0.02, deadline_seconds=0.1)
    assert isinstance(unscored, Unscored)
    assert (unscored.reason, unscored.detail) == ("timeout", "no answer within 0.02 s")


def test_an_unreadable_reply_is_asked_about_once_more_with_the_whole_case() -> None:
    replies = ScriptedProvider(lambda q, n: "no idea" if n == 0 else agree(q, n))
    score = ask(replies)
    assert isinstance(score, CoachScore)
    assert score.attempts == 2
    assert (score.prompt_tokens, score.reply_tokens) == (200, 20)
    first, second = replies.asked
    assert second.user.startswith(first.user)
    assert "could not be read: there is no score" in second.user
    assert score.request is not None
    assert score.request.prompt == second.user


def test_replies_that_stay_unreadable_leave_the_action_unscored() -> None:
    unscored = ask(ScriptedProvider(lambda q, n: "no idea"))
    assert isinstance(unscored, Unscored)
    assert (unscored.reason, unscored.attempts) == ("unparsable", 2)
    assert unscored.raw_reply == "no idea"
    assert unscored.cost_usd == pytest.approx(2 * (100 + 100) / 1e6)


def test_an_agent_without_a_rubric_costs_nothing() -> None:
    provider = ScriptedProvider()
    unscored = asyncio.run(make_coach(provider).score(make_case(agent="stranger")))
    assert isinstance(unscored, Unscored)
    assert (unscored.reason, unscored.attempts, provider.asked) == ("refused", 0, [])


def test_identical_requests_are_asked_once_and_repeats_are_not() -> None:
    provider = ScriptedProvider(seconds=0.01)
    coach = make_coach(provider)

    async def body() -> list[CoachScore | Unscored]:
        same = [coach.score(make_case()) for _ in range(5)]
        repeat = coach.score(replace(make_case(), sample=1))
        return await asyncio.gather(*same, repeat, coach.score(make_case("Divide.")))

    scores = asyncio.run(body())
    assert len(provider.asked) == 3
    assert sorted(score.attempts for score in scores) == [0, 0, 0, 0, 1, 1, 1]
    assert sum(score.cost_usd or 0 for score in scores) == pytest.approx(coach.spent.cost_usd)
    assert sorted(provider.seeds) == [0, 0, 1]


def test_a_failure_is_not_shared_with_who_asks_later() -> None:
    provider = ScriptedProvider(failing(1, Final("blocked", "once")))
    coach = make_coach(provider)

    async def body() -> list[CoachScore | Unscored]:
        return [await coach.score(make_case()) for _ in range(2)]

    first, second = asyncio.run(body())
    assert isinstance(first, Unscored)
    assert isinstance(second, CoachScore)


@pytest.mark.parametrize(
    ("limits", "scored"),
    [({"calls": 3}, 3), ({"tokens": 11_500}, 3), ({"dollars": 0.019}, 4)],
)
def test_a_budget_is_never_overdrawn(limits: dict[str, float], scored: int) -> None:
    budget = BudgetConfig.model_validate(limits)
    provider = ScriptedProvider(usage=Usage(prompt=1000, reply=2000))
    # A call is expected to take what its text is long plus 2048, and then takes 3000 tokens.
    coach = make_coach(provider, budget=budget, prices={"input_usd": 1.0, "output_usd": 1.5})

    async def body() -> list[CoachScore | Unscored]:
        return [await coach.score(make_case(f"Plan {n}.")) for n in range(6)]

    results = asyncio.run(body())
    done = [one for one in results if isinstance(one, CoachScore)]
    left = [one for one in results if isinstance(one, Unscored)]
    assert len(provider.asked) == len(done) == scored
    assert {one.reason for one in left} == {"out_of_budget"}
    assert all(f"coach.budget.{name}" in one.detail for one in left for name in limits)
    assert coach.spent.calls <= limits.get("calls", 99)
    assert coach.spent.tokens <= limits.get("tokens", 10**9)
    assert coach.spent.cost_usd <= limits.get("dollars", 1e9)


def test_calls_under_way_are_waited_for_and_not_held_against_the_next() -> None:
    # 64 calls take 0.192 dollars; at their most expensive three at once are all that fit.
    provider = ScriptedProvider(usage=Usage(prompt=2900, reply=10), seconds=0.001)
    coach = make_coach(provider, budget=BudgetConfig(dollars=0.3), max_output_tokens=8192)

    async def body() -> list[CoachScore | Unscored]:
        return await asyncio.gather(*(coach.score(make_case(f"Plan {n}.")) for n in range(64)))

    results = asyncio.run(body())
    assert [one.reason for one in results if isinstance(one, Unscored)] == []
    assert 1 < provider.most_in_flight < 4
    assert coach.spent.cost_usd == pytest.approx(64 * (2900 + 100) / 1e6)


def test_a_budget_says_what_is_left_of_it() -> None:
    coach = make_coach(ScriptedProvider(), budget=BudgetConfig(dollars=0.02))
    coach.resume_budget(Spending(calls=1, tokens=100, cost_usd=0.015))
    unscored = asyncio.run(coach.score(make_case()))
    assert isinstance(unscored, Unscored)
    assert unscored.detail == "coach.budget.dollars=0.02 is spent but for 0.0050"


def test_a_call_that_is_not_counted_is_held_to_have_taken_all_it_might() -> None:
    provider = ScriptedProvider(usage=None)
    coach = make_coach(provider, budget=BudgetConfig(tokens=12_000))

    async def body() -> list[CoachScore | Unscored]:
        return [await coach.score(make_case(f"Plan {n}.")) for n in range(6)]

    results = asyncio.run(body())
    assert 0 < len(provider.asked) < 6
    assert {one.reason for one in results if isinstance(one, Unscored)} == {"out_of_budget"}
    assert 2048 * len(provider.asked) < coach.spent.tokens <= 12_000


def test_a_resumed_run_goes_on_with_what_it_had_spent() -> None:
    provider = ScriptedProvider()
    coach = make_coach(provider, budget=BudgetConfig(calls=10))
    coach.resume_budget(Spending(calls=9, tokens=100, cost_usd=1.5))

    async def body() -> list[CoachScore | Unscored]:
        return [await coach.score(make_case(f"Plan {n}.")) for n in range(3)]

    results = asyncio.run(body())
    assert [isinstance(one, CoachScore) for one in results] == [True, False, False]
    assert coach.spent.calls == 10


def test_no_more_calls_at_once_than_configured() -> None:
    provider = ScriptedProvider(seconds=0.005)
    coach = make_coach(provider, concurrency=4)

    async def body() -> None:
        await asyncio.gather(*(coach.score(make_case(f"Plan {n}.")) for n in range(40)))

    asyncio.run(body())
    assert provider.most_in_flight == 4
    assert len(provider.asked) == 40


def test_the_limit_shrinks_once_per_burst_of_complaints_and_grows_back() -> None:
    limit = CallLimit(10)

    async def body() -> None:
        async with limit.call() as first, limit.call() as second:
            limit.slow_down(first)
            limit.slow_down(second)
        assert limit.limit == 7
        async with limit.call() as later:
            limit.slow_down(later)
        assert limit.limit == 4
        for _ in range(100):
            limit.speed_up()
        assert limit.limit == 10

    asyncio.run(body())


def test_a_limit_that_shrank_lets_fewer_calls_run() -> None:
    limit = CallLimit(4)
    running = most = 0

    async def call() -> None:
        nonlocal running, most
        async with limit.call():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

    async def body() -> int:
        async with limit.call() as era:
            limit.slow_down(era)
        nonlocal most
        await asyncio.gather(*(call() for _ in range(20)))
        shrunk, most = most, 0
        for _ in range(20):
            limit.speed_up()
        await asyncio.gather(*(call() for _ in range(20)))
        return shrunk

    # The permit of the call that met the complaint is not handed on, those under way are.
    assert (asyncio.run(body()), most) == (3, 4)


def test_a_cancelled_wait_loses_no_permit() -> None:
    limit = CallLimit(1)

    async def hold() -> None:
        async with limit.call():
            await asyncio.sleep(0.01)

    async def body() -> None:
        waiting = [asyncio.create_task(hold()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        waiting[2].cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        async with asyncio.timeout(1), limit.call():
            pass

    asyncio.run(body())


def test_the_providers_rate_spreads_the_calls() -> None:
    provider = ScriptedProvider()
    # 600 a minute and a burst of 600: the 601st waits for a tenth of a second.
    coach = make_coach(provider, requests_per_minute=600, concurrency=700)

    async def body() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(coach.score(make_case(f"Plan {n}.")) for n in range(601)))
        return loop.time() - began

    assert asyncio.run(body()) >= 0.08


def test_the_providers_tokens_a_minute_spread_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MINUTE_SECONDS", 0.1)
    # A call of more tokens than a minute has takes all of them: the second waits a minute.
    coach = make_coach(ScriptedProvider(), tokens_per_minute=1)

    async def body() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(coach.score(make_case(f"Plan {n}.")) for n in range(2)))
        return loop.time() - began

    assert asyncio.run(body()) >= 0.08


def test_a_score_that_took_a_second_ask_is_not_asked_for_again() -> None:
    provider = ScriptedProvider(lambda q, n: "no idea" if n == 0 else agree(q, n))
    coach = make_coach(provider)

    async def body() -> list[CoachScore | Unscored]:
        return [await coach.score(make_case()) for _ in range(2)]

    first, second = asyncio.run(body())
    assert (first.attempts, second.attempts, len(provider.asked)) == (2, 0, 2)
    assert isinstance(second, CoachScore)


def test_cases_are_put_into_words_only_when_their_turn_comes() -> None:
    provider = ScriptedProvider(seconds=60)
    coach = make_coach(provider, concurrency=1)

    async def body() -> int:
        waiting = [asyncio.create_task(coach.score(make_case(f"Waiting {n}."))) for n in range(50)]
        await asyncio.sleep(0.02)
        known = [one for one in gc.get_objects() if type(one) is RequestTemplate]
        ours = [one for one in known if one.case.text.startswith("Waiting")]
        in_words = sum("prompt" in one.__dict__ for one in ours)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return in_words

    assert asyncio.run(body()) == 1


def _solves(question: Question, number: int) -> str:
    return "4 * 5 = 20" if question.system == SOLVING else agree(question, number)


def test_a_task_is_solved_once_and_judged_with_that_solution_at_hand() -> None:
    provider = ScriptedProvider(_solves, seconds=0.01)
    coach = make_coach(provider, own_solution=True)

    async def both() -> list[CoachScore | Unscored]:
        cases = make_case("Multiply 4 by 5."), make_case("Add 4 and 5.")
        return await asyncio.gather(*(coach.score(case) for case in cases))

    scores = asyncio.run(both())
    solving, *judging = provider.asked
    assert (solving.system, solving.user) == (SOLVING, make_case().statement)
    assert provider.judged == [False, True, True]
    for question in judging:
        assert "<<<your own solution>>>\n4 * 5 = 20\n<<<END " in question.user
        assert WITH_OWN_SOLUTION in question.system
    # Who came first paid for the solution, too.
    assert sorted(score.attempts for score in scores) == [1, 2]
    assert sorted(score.prompt_tokens or 0 for score in scores) == [100, 200]
    assert coach.spent.calls == 3


def test_what_a_coach_thought_before_its_solution_is_none_of_it() -> None:
    thought = "<think>Perhaps 4 * 5 = 25.</think>\n4 * 5 = 20"
    provider = ScriptedProvider(
        lambda question, number: thought if question.system == SOLVING else agree(question, number)
    )
    assert isinstance(ask(provider, own_solution=True), CoachScore)
    assert "<<<your own solution>>>\n4 * 5 = 20\n<<<END " in provider.asked[1].user
    unended = ScriptedProvider(lambda question, number: "<think>Perhaps 4 * 5 = 25.")
    score = ask(unended, own_solution=True)
    assert isinstance(score, Unscored)
    assert "its own solution: the reply is empty" in score.detail


def test_tasks_that_are_solved_beforehand_are_paid_for_by_their_first_score() -> None:
    provider = ScriptedProvider(_solves)
    coach = make_coach(provider, own_solution=True)
    case = make_case()

    async def body() -> list[CoachScore | Unscored]:
        await coach.solve([case.statement, case.statement, "Another task."])
        await coach.solve([case.statement])
        return [await coach.score(case), await coach.score(make_case("Another plan."))]

    scores = asyncio.run(body())
    assert provider.judged == [False, False, True, True]
    assert [score.attempts for score in scores] == [2, 1]
    assert [score.prompt_tokens for score in scores] == [200, 100]
    assert all("4 * 5 = 20" in question.user for question in provider.asked[2:])
    assert coach.spent.calls == 4


def test_a_task_that_could_not_be_solved_beforehand_is_solved_with_its_first_case() -> None:
    provider = ScriptedProvider(
        lambda question, number: (
            Final("refused", "no") if number == 0 else _solves(question, number)
        )
    )
    coach = make_coach(provider, own_solution=True)

    async def body() -> CoachScore | Unscored:
        await coach.solve([make_case().statement])
        return await coach.score(make_case())

    assert isinstance(asyncio.run(body()), CoachScore)
    assert provider.judged == [False, False, True]


def test_unless_asked_a_coach_solves_nothing_beforehand_either() -> None:
    provider = ScriptedProvider()
    asyncio.run(make_coach(provider).solve(["A task."]))
    assert provider.judged == []


def test_a_coach_under_other_rubrics_knows_the_solution() -> None:
    provider = ScriptedProvider(_solves)
    coach = make_coach(provider, own_solution=True)

    async def body() -> None:
        await coach.score(make_case())
        await coach.under(RUBRICS).score(make_case("Another plan."))

    asyncio.run(body())
    assert provider.judged == [False, True, True]


@pytest.mark.parametrize(
    ("answer", "reason"), [(Final("refused", "no"), "refused"), (" \n", "unparsable")]
)
def test_without_a_solution_there_is_no_score(answer: str | ProviderError, reason: str) -> None:
    provider = ScriptedProvider(lambda question, number: answer)
    score = ask(provider, own_solution=True)
    assert isinstance(score, Unscored)
    assert (score.reason, score.attempts) == (reason, 1)
    assert "its own solution" in score.detail


def test_unless_asked_a_coach_solves_nothing() -> None:
    provider = ScriptedProvider()
    ask(provider)
    assert provider.judged == [True]
    assert WITH_OWN_SOLUTION not in provider.asked[0].system
