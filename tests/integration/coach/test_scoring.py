"""Which scores are asked for, which are missing, and what becomes of them in the store."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from mappa_cli.provider_stub.script import Question, judgement
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import with_overrides
from mappa_core.coach import evidence
from mappa_core.coach.budget import Budget
from mappa_core.coach.case import case_of
from mappa_core.coach.config import BudgetConfig, CoachConfig
from mappa_core.coach.llm_coach import LlmCoach
from mappa_core.coach.providers.provider import ProviderError, status_error
from mappa_core.coach.rescore import coach_overrides, plan_rescoring, rescore
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.coach.scoring import ScorePlan, score_episode, score_id, takes_second
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, Message, Outcome, StopReason
from mappa_core.core.records.runs import Run
from mappa_core.core.records.scores import (
    CoachIdentity,
    Duty,
    LabelVisibility,
    ScoreEntry,
    Unscored,
)
from mappa_core.core.records.tools import Artifact, RejectedFile
from mappa_core.store.store import Store
from tests.builders import (
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_tool_result,
    make_turn,
)
from tests.fakes.coaching import Answer, ScriptedProvider, TestClock, agree

AGENTS = ("problem_solver", "code_executor", "verifier")
RUBRICS = load_rubrics("mathchat", "paper-1")
PlayEpisode = Callable[..., Episode]


def make_coach(provider: ScriptedProvider, model: str = "first", **options: Any) -> LlmCoach:
    known = {"backend": "gemini", "model": model, "deadline_seconds": 5}
    config = CoachConfig.model_validate(known | options)
    return LlmCoach(provider, RUBRICS, config, Budget(BudgetConfig()), clock=TestClock().clock())


@pytest.fixture
def run(store: Store) -> Run:
    run = make_run()
    store.runs.add_run(run)
    store.episodes.add_problems([make_problem()])
    for agent in AGENTS:
        store.policies.add_policy_version(make_policy(run, agent))
    return run


@pytest.fixture
def play(store: Store, run: Run) -> PlayEpisode:
    def play(rollout_index: int = 0) -> Episode:
        episode = make_episode(run, make_problem(), rollout_index=rollout_index)
        store.episodes.open_episode(episode)
        for index, agent in enumerate(AGENTS):
            turn = make_turn(
                make_policy(run, agent),
                index,
                text=f"{agent} speaks, {rollout_index}",
                tool_result=make_tool_result() if agent == "code_executor" else None,
            )
            store.episodes.add_turn(episode, turn)
            episode = episode.with_turn(turn)
        outcome = Outcome(success=True, answer="5", method="math-verify")
        episode = episode.closed(StopReason.ANSWERED, outcome=outcome)
        store.episodes.close_episode(episode)
        return episode

    return play


def test_repeats_and_second_opinions_are_further_rows(store: Store, play: PlayEpisode) -> None:
    episode = play()
    first, second = ScriptedProvider(), ScriptedProvider()
    plan = ScorePlan(
        coach=make_coach(first),
        repeats=3,
        second=make_coach(second, "second"),
        second_share=1.0,
    )
    entries = asyncio.run(score_episode(episode, plan=plan, store=store))
    assert (len(first.asked), len(second.asked)) == (9, 3)
    rows = Counter((e.identity.model, e.repeat_index, e.trained) for e in entries)
    assert rows == {
        ("first", 0, True): 3,
        ("first", 1, False): 3,
        ("first", 2, False): 3,
        ("second", 0, False): 3,
    }
    assert {entry.identity.model_version for entry in entries} == {"scripted-7"}
    again = asyncio.run(score_episode(episode, plan=plan, store=store))
    assert by_id(again) == by_id(entries) == by_id(store.scores.scores_of_episode(episode.id))
    assert len(first.asked) == 9


def test_the_second_coach_sees_its_share_of_the_actions(store: Store, play: PlayEpisode) -> None:
    second = ScriptedProvider()
    plan = ScorePlan(
        coach=RuleCoach("mathchat"), second=make_coach(second, "second"), second_share=0.3
    )
    for number in range(20):
        asyncio.run(score_episode(play(number), plan=plan, store=store))
    assert 8 <= len(second.asked) <= 28
    ids = [
        entry.action_id for n in range(20) for entry in store.scores.scores_of_episode(play(n).id)
    ]
    assert len(second.asked) == sum(takes_second(one, 0.3) for one in set(ids))


@pytest.mark.parametrize("status", [401, 403, 503])
def test_only_what_is_missing_is_asked_again_and_the_new_row_trains(
    store: Store, play: PlayEpisode, status: int
) -> None:
    episode = play()

    def flaky(question: Question, number: int) -> str | ProviderError:
        verifier = "agent `verifier`" in question.user
        return status_error(status, "no") if verifier else agree(question, number)

    plan = ScorePlan(coach=make_coach(ScriptedProvider(flaky)))
    before = asyncio.run(score_episode(episode, plan=plan, store=store))
    assert [isinstance(entry.score, Unscored) for entry in before] == [False, False, True]

    assert by_id(before) == by_id(store.scores.scores_of_episode(episode.id))

    settled = replace(plan, coach=make_coach(ScriptedProvider()), settled=frozenset(AGENTS))
    unchanged = asyncio.run(score_episode(episode, plan=settled, store=store))
    assert by_id(unchanged) == by_id(before)

    healthy = ScriptedProvider()
    plan = ScorePlan(coach=make_coach(healthy))
    after = asyncio.run(score_episode(episode, plan=plan, store=store))
    assert len(healthy.asked) == 1
    assert len(after) == 4
    assert by_id(after) == by_id(store.scores.scores_of_episode(episode.id))
    assert [e.trained for e in after if isinstance(e.score, Unscored)] == [False]
    assert len({e.action_id for e in after if e.trained}) == 3 == sum(e.trained for e in after)


def test_a_blocked_action_stays_unscored(store: Store, play: PlayEpisode) -> None:
    from mappa_core.coach.providers.provider import Final

    episode = play()
    blocking: Answer = lambda question, number: Final("blocked", "safety")  # noqa: E731
    plan = ScorePlan(coach=make_coach(ScriptedProvider(blocking)))
    before = asyncio.run(score_episode(episode, plan=plan, store=store))
    healthy = ScriptedProvider()
    plan = ScorePlan(coach=make_coach(healthy))
    unchanged = asyncio.run(score_episode(episode, plan=plan, store=store))
    assert by_id(unchanged) == by_id(before)
    assert healthy.asked == []


def test_visibility_is_a_policy_per_agent_and_a_column_of_every_row(
    store: Store, play: PlayEpisode
) -> None:
    provider = ScriptedProvider()
    plan = ScorePlan(
        coach=make_coach(provider),
        visibility={
            "verifier": LabelVisibility.FULL,
            "code_executor": LabelVisibility.OUTCOME_ONLY,
        },
    )
    entries = asyncio.run(score_episode(play(), plan=plan, store=store))
    assert [entry.visibility.value for entry in entries] == ["never", "outcome_only", "full"]
    assert [entry.label_visible for entry in entries] == [False, True, True]
    prompts = {q.user.split("`")[1]: q.user for q in provider.asked}
    assert "final answer was" not in prompts["problem_solver"]
    assert "final answer was right" in prompts["code_executor"]
    assert "expected answer is" not in prompts["code_executor"]
    assert "The expected answer is: 5" in prompts["verifier"]


def test_a_case_shows_the_truth_only_where_it_may() -> None:
    run = make_run()
    turn = make_turn(make_policy(run, "verifier"))
    outcome = Outcome(success=False, answer="4", method="math-verify")
    episode = make_episode(run, make_problem()).with_turn(turn)
    episode = episode.closed(StopReason.ANSWERED, outcome=outcome)
    never = case_of(episode, turn, LabelVisibility.NEVER)
    assert (never.outcome, never.expected_answer) == (None, None)
    some = case_of(episode, turn, LabelVisibility.OUTCOME_ONLY)
    assert (some.outcome, some.expected_answer) == (outcome, None)
    full = case_of(episode, turn, LabelVisibility.FULL)
    assert (full.outcome, full.expected_answer) == (outcome, "5")


def test_rescoring_is_limited_resumable_and_touches_no_training_score(
    store: Store, run: Run, play: PlayEpisode
) -> None:
    for number in range(4):
        asyncio.run(
            score_episode(play(number), plan=ScorePlan(coach=RuleCoach("mathchat")), store=store)
        )
    config = CoachConfig.model_validate(
        {"backend": "gemini", "model": "first", "prices": {"input_usd": 1, "output_usd": 2}}
    )
    provider = ScriptedProvider()
    plan = ScorePlan(coach=make_coach(provider), trains=False)
    done: list[int] = []
    part = plan_rescoring(store, run, plan, RUBRICS, config, 5)
    assert part.count == 5
    assert part.expected.calls == 5
    assert part.expected.cost_usd > 0
    result = asyncio.run(rescore(store, plan, part, done.append))
    assert (result.scored, result.unscored, sum(done)) == (5, 0, 5)
    assert plan_rescoring(store, run, plan, RUBRICS, config, 5).count == 0
    assert plan_rescoring(store, run, plan, RUBRICS, config, 8).count == 3
    rest = plan_rescoring(store, run, plan, RUBRICS, config, None)
    assert rest.count == 7
    asyncio.run(rescore(store, plan, rest, done.append))
    assert len(provider.asked) == 12
    assert plan_rescoring(store, run, plan, RUBRICS, config, None).count == 0
    entries = [entry for n in range(4) for entry in store.scores.scores_of_episode(play(n).id)]
    assert Counter((e.identity.coach, e.trained) for e in entries) == {
        ("rule", True): 12,
        ("gemini", False): 12,
    }


def test_a_limited_rescoring_draws_from_the_whole_run(
    store: Store, run: Run, play: PlayEpisode
) -> None:
    for number in range(12):
        play(number)
    plan, config = ScorePlan(coach=RuleCoach("mathchat"), trains=False), CoachConfig()
    episodes = [str(each.id) for each in store.episodes.list_episodes(run.id)]
    few, more = (
        dict(plan_rescoring(store, run, plan, None, config, limit).actions) for limit in (6, 12)
    )
    assert sum(map(len, few.values())) == 6
    assert all(actions <= more[episode] for episode, actions in few.items())
    # The first four episodes have twelve actions.
    assert not set(more) <= set(episodes[:4])


def test_a_changed_rubric_is_another_scorer(store: Store, run: Run, play: PlayEpisode) -> None:
    play()
    plan = ScorePlan(coach=make_coach(ScriptedProvider()), trains=False)
    config = CoachConfig(backend="gemini", model="first")
    job = plan_rescoring(store, run, plan, RUBRICS, config, None)
    asyncio.run(rescore(store, plan, job, lambda actions: None))
    changed = RUBRICS.model_copy(update={"sha256": "other"})
    coach = LlmCoach(ScriptedProvider(), changed, config, Budget(BudgetConfig()))
    other = ScorePlan(coach=coach, trains=False)
    assert plan_rescoring(store, run, plan, RUBRICS, config, None).count == 0
    assert plan_rescoring(store, run, other, changed, config, None).count == 3


@pytest.mark.parametrize(
    "option",
    [
        {"own_solution": True},
        {"correction": True},
        {"server": {"rationale_characters": 200}},
        {"temperature": 0.3},
        {"thinking_budget": 0},
    ],
)
def test_a_coach_that_is_asked_otherwise_is_another_scorer(
    store: Store, run: Run, play: PlayEpisode, option: dict[str, Any]
) -> None:
    episode = play()
    config = CoachConfig(backend="gemini", model="first")
    coaches = make_coach(ScriptedProvider()), make_coach(ScriptedProvider(), **option)
    for coach in coaches:
        plan = ScorePlan(coach=coach, trains=False)
        job = plan_rescoring(store, run, plan, RUBRICS, config, None)
        assert job.count == 3
        asyncio.run(rescore(store, plan, job, lambda actions: None))
    stored = Counter(
        (entry.identity.rubric_version, entry.identity.rubric_sha256)
        for entry in store.scores.scores_of_episode(episode.id)
    )
    (plain, sha256), (asked, other) = stored
    assert set(stored.values()) == {3}
    assert all(name.startswith(f"{RUBRICS.name}+") for name in (plain, asked))
    assert plain != asked
    assert len({RUBRICS.sha256, sha256, other}) == 3
    # What does not reach a judgement leaves it the same scorer.
    cut = make_coach(ScriptedProvider(), max_output_tokens=4096, concurrency=1)
    plan = ScorePlan(coach=cut, trains=False)
    assert plan_rescoring(store, run, plan, RUBRICS, config, None).count == 0


@pytest.mark.parametrize("words", ["INSTRUCTIONS", "ANSWERING"])
def test_a_coach_that_is_told_other_words_is_another_scorer(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_coach(ScriptedProvider()).identity
    told = f"Be kind. {getattr(evidence, words)}"
    monkeypatch.setattr(evidence, words, told)
    after = make_coach(ScriptedProvider()).identity
    assert before.rubric_sha256 != after.rubric_sha256
    assert before.rubric_version != after.rubric_version


def test_words_that_only_some_cases_hold_are_told_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def identities() -> tuple[CoachIdentity, ...]:
        options: tuple[dict[str, Any], ...] = ({}, {"own_solution": True})
        return tuple(make_coach(ScriptedProvider(), **each).identity for each in options)

    before = identities()
    monkeypatch.setattr(evidence, "_lacking", str)
    after = identities()
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def by_id(entries: Sequence[ScoreEntry]) -> list[ScoreEntry]:
    return sorted(entries, key=lambda entry: entry.id)


def test_the_id_of_a_score_stays_what_it_is() -> None:
    identity = CoachIdentity(
        coach="gemini",
        model="m",
        model_version="m",
        rubric_version="paper-1",
        rubric_sha256="0b" * 32,
    )
    assert str(score_id(UUID(int=1), identity, 2, 0)) == "2da82115-ed46-5134-ae89-e84c7a28e376"
    assert str(score_id(UUID(int=1), identity, 2, 1)) == "76720a5f-d1e7-5652-93dc-e062b53f4fa6"


def test_a_coach_is_named_by_backend_and_model() -> None:
    assert coach_overrides("gemini:gemini-2.5-pro", "./mine-1") == [
        "coach.backend=gemini",
        "coach.model=gemini-2.5-pro",
        "coach.rubric=./mine-1",
    ]
    # A run that a model coached can be scored by rules: no model is named, not null.
    asked = TrainConfig.model_validate({"coach": {"backend": "openai", "model": "gpt-5-mini"}})
    by_rules = with_overrides(asked, coach_overrides("rule", None)).coach
    assert (by_rules.backend, by_rules.model) == ("rule", "")
    with pytest.raises(ConfigError, match="backend:model"):
        coach_overrides("gemini:", None)


def test_a_judgement_is_what_the_stand_in_says() -> None:
    question = Question(system="", user="Case x:", max_output_tokens=1, thinking_budget=0)
    assert '"score": 3.0' in judgement(question, 3.0)


def test_prompts_from_sql_alone_are_byte_for_byte_those_that_trained(
    store: Store, run: Run
) -> None:
    duties = (
        Duty(agent="problem_solver", files=("x.csv", "t.csv")),
        Duty(agent="code_executor", files=("m.pkl",)),
        Duty(agent="verifier", files=("s.csv",)),
    )
    episode = make_episode(run, make_problem())
    store.episodes.open_episode(episode)
    for index, agent in enumerate(AGENTS):
        read = None if index == 1 else (file("x.csv"), file("task.csv"))
        result = replace(
            make_tool_result(),
            stdout="é \u200b 漢字 \ud83c\udf89 <|im_end|>\r\n\x0b",
            seconds=0.1 + 0.2,
            written=(file(f"{index}.csv"), file("x.csv")),
            read=read,
            removed=("gone.csv",) if index == 2 else (),
            rejected=(RejectedFile(name="link", reason="a link"),),
        )
        turn = make_turn(make_policy(run, agent), index, text=f"{agent} 🎉", tool_result=result)
        # What an agent said itself comes back with the ids it was sampled with.
        said = Message(role="assistant", content="I said this.", token_ids=(1, 2))
        seen = (*turn.observation.messages, said, Message(role="user", content="Go on."))
        observation = replace(turn.observation, messages=seen)
        turn = replace(turn, observation=observation)
        store.episodes.add_turn(episode, turn)
        episode = episode.with_turn(turn)
    outcome = Outcome(
        success=True, answer="s.csv", method="m", metric="rmse", value=1 / 3, skill=2 / 3
    )
    episode = episode.closed(StopReason.ANSWERED, outcome=outcome)
    store.episodes.close_episode(episode)
    visibility: dict[str, LabelVisibility] = dict.fromkeys(AGENTS, LabelVisibility.FULL)

    def asked(played: Episode, *, trains: bool) -> list[Question]:
        provider = ScriptedProvider()
        plan = ScorePlan(
            coach=make_coach(provider, "first" if trains else "other"),
            visibility=visibility,
            duties=duties,
            trains=trains,
        )
        asyncio.run(score_episode(played, plan=plan, store=store))
        return sorted(provider.asked, key=lambda question: question.user)

    trained = asked(episode, trains=True)
    assert len(trained) == 3
    assert asked(store.episodes.get_episode(str(episode.id)), trains=False) == trained
    assert any("first to fail its duty: problem_solver" in one.user for one in trained)
    assert any("rmse 0.333333" in one.user for one in trained)


def file(name: str) -> Artifact:
    return Artifact(name=name, size_bytes=3, sha256="0b" * 32)
