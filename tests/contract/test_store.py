"""What the store promises, on a real Postgres."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from mappa_core.core import ids
from mappa_core.core.errors import NotFound, StoreError
from mappa_core.core.records.episodes import (
    Episode,
    Figure,
    FinishReason,
    Outcome,
    Phase,
    StopReason,
)
from mappa_core.core.records.runs import Run, RunStatus
from mappa_core.core.records.scores import (
    CoachRequest,
    CoachScore,
    CriterionMark,
    LabelVisibility,
    Spending,
    Unscored,
)
from mappa_core.core.records.tools import ToolStatus
from mappa_core.store.store import Store
from tests.builders import (
    RULE_COACH,
    STARTED_AT,
    entry,
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_score,
    make_tool_result,
    make_turn,
    make_update,
)

RIGHT = Outcome(
    success=True,
    answer="5",
    method="math-verify",
    metric="rmse",
    value=2.5,
    charged=2.5,
    skill=0.75,
    detail="stale",
    figures=(
        Figure(name="r2", value=0.75, constant=0.0),
        Figure(name="rmse_over_sd", value=None, constant=1.0),
    ),
)
WRONG = Outcome(success=False, answer=None, method="math-verify")


@pytest.fixture
def run(store: Store) -> Run:
    """A run with one problem and the base policies of two agents."""
    run = make_run()
    store.runs.add_run(run)
    store.episodes.add_problems([make_problem()])
    store.policies.add_policy_version(make_policy(run, "solver"))
    store.policies.add_policy_version(make_policy(run, "executor"))
    return run


@pytest.fixture
def play(store: Store, run: Run) -> Callable[..., Episode]:
    """Play one episode of a solver's turn and an executor's with a tool call."""

    def play(
        rollout_index: int = 0,
        *,
        reason: StopReason | None = StopReason.ANSWERED,
        outcome: Outcome | None = RIGHT,
        phase: Phase = "train",
        iteration: int = 1,
    ) -> Episode:
        episode = make_episode(
            run, make_problem(), phase=phase, iteration=iteration, rollout_index=rollout_index
        )
        store.episodes.open_episode(episode)
        for turn in (
            make_turn(make_policy(run, "solver"), 0),
            make_turn(make_policy(run, "executor"), 1, tool_result=make_tool_result()),
        ):
            store.episodes.add_turn(episode, turn)
            episode = episode.with_turn(turn)
        if reason is not None:
            error = "the engine died" if reason is StopReason.FAILED else None
            episode = episode.closed(reason, outcome=outcome, error=error)
            store.episodes.close_episode(episode)
        return episode

    return play


class TestRuns:
    def test_reads_back_what_was_written(self, store: Store, run: Run) -> None:
        assert store.runs.get_run("quickstart-1") == run

    def test_a_repeat_changes_nothing(self, store: Store, run: Run) -> None:
        store.runs.add_run(replace(run, team="other"))
        assert store.runs.list_runs() == (run,)

    def test_is_found_by_id_and_by_prefix(self, store: Store, run: Run) -> None:
        assert (
            store.runs.get_run(str(run.id))
            == store.runs.get_run(str(run.id)[:6].upper())
            == store.runs.get_run("quick")
        )

    def test_a_whole_name_beats_the_same_as_a_prefix(self, store: Store, run: Run) -> None:
        store.runs.add_run(make_run("quickstart-10"))
        assert store.runs.get_run("quickstart-1") == run

    @pytest.mark.parametrize("name", ["nothing", "%", "quick_tart"])
    def test_an_unknown_one_is_not_found(self, store: Store, run: Run, name: str) -> None:
        with pytest.raises(NotFound, match="no run"):
            store.runs.get_run(name)

    def test_an_ambiguous_prefix_names_the_candidates(self, store: Store, run: Run) -> None:
        store.runs.add_run(make_run("quickstart-2"))
        with pytest.raises(NotFound, match=str(run.id)[:13]):
            store.runs.get_run("quickstart")

    def test_newest_first_and_limited(self, store: Store, run: Run) -> None:
        later = make_run("later", started_at=STARTED_AT + timedelta(hours=1))
        store.runs.add_run(later)
        assert store.runs.list_runs() == (later, run)
        assert store.runs.list_runs(limit=1) == (later,)

    def test_links_are_kept_when_not_given(self, store: Store, run: Run) -> None:
        store.runs.link_run(run.id, prefect_flow_run_id="flow", mlflow_run_id=None)
        store.runs.link_run(run.id, prefect_flow_run_id=None, mlflow_run_id="mlflow")
        linked = store.runs.get_run(run.name)
        assert (linked.prefect_flow_run_id, linked.mlflow_run_id) == ("flow", "mlflow")

    def test_closing_and_reopening(self, store: Store, run: Run) -> None:
        store.runs.set_status(run.id, RunStatus.FAILED, "out of memory")
        failed = store.runs.get_run(run.name)
        assert (failed.status, failed.error) == (RunStatus.FAILED, "out of memory")
        assert failed.ended_at is not None
        store.runs.set_status(run.id, RunStatus.RUNNING)
        assert store.runs.get_run(run.name) == run


class TestPolicies:
    def test_reads_back_or_none(self, store: Store, run: Run) -> None:
        assert store.policies.get_policy_version(run.id, "solver", 0) == make_policy(run, "solver")
        assert store.policies.get_policy_version(run.id, "solver", 1) is None

    def test_one_of_no_known_run_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="fk_policy_version_run_id"):
            store.policies.add_policy_version(make_policy(make_run("unknown")))


class TestEpisodes:
    def test_reads_back_what_was_written(self, store: Store, play: Callable[..., Episode]) -> None:
        episode = play()
        assert store.episodes.get_episode(str(episode.id)) == episode
        assert store.episodes.get_episode(str(episode.id)[:8]) == episode

    def test_opening_again_returns_the_turns_before_a_crash(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        played = play(reason=None)
        assert store.episodes.open_episode(make_episode(run, make_problem())) == played

    def test_a_turn_and_an_end_are_written_once(
        self, store: Store, play: Callable[..., Episode]
    ) -> None:
        episode = play()
        store.episodes.add_turn(episode, episode.turns[1])
        store.episodes.close_episode(replace(episode, stop_reason=StopReason.FAILED, outcome=WRONG))
        assert store.episodes.get_episode(str(episode.id)) == episode

    def test_those_of_one_moment_are_written_together_and_as_one_by_one(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        played = play()
        begun = [make_episode(run, make_problem(), rollout_index=index) for index in range(1, 40)]
        turn = make_turn(make_policy(run, "solver"), 0)
        opened = store.episodes.open_episodes((played, *begun))
        assert opened == (played, *begun)
        store.episodes.add_turns([(each, turn) for each in begun])
        closed = [each.with_turn(turn).closed(StopReason.ANSWERED, outcome=RIGHT) for each in begun]
        other = replace(played, stop_reason=StopReason.FAILED, outcome=WRONG)
        store.episodes.close_episodes((other, *closed))
        for each in (played, *closed):
            assert store.episodes.get_episode(str(each.id)) == each

    def test_an_episode_of_an_unknown_problem_is_refused(self, store: Store, run: Run) -> None:
        with pytest.raises(StoreError, match="fk_episode_problem_id"):
            store.episodes.open_episode(make_episode(run, make_problem("Unheard of.")))

    def test_an_unknown_one_is_not_found(self, store: Store) -> None:
        with pytest.raises(NotFound, match="no episode '00'"):
            store.episodes.get_episode("00")

    def test_many_threads_at_once(self, store: Store, play: Callable[..., Episode]) -> None:
        with ThreadPoolExecutor(32) as threads:
            episodes = list(threads.map(play, range(64)))
        assert [store.episodes.get_episode(str(episode.id)) for episode in episodes] == episodes

    def test_any_text_comes_back_as_it_was(self, store: Store, run: Run) -> None:
        strange = "NUL \x00, lone \udc80, escape ␛, pair \ud83d\ude00, 😀"
        turn = make_turn(make_policy(run), text=strange)
        episode = make_episode(run, make_problem())
        store.episodes.open_episode(episode)
        store.episodes.add_turn(episode, turn)
        assert store.episodes.get_episode(str(episode.id)).turns == (turn,)

    def test_an_empty_action_comes_back_empty(self, store: Store, run: Run) -> None:
        turn = make_turn(make_policy(run), token_ids=())
        episode = make_episode(run, make_problem())
        store.episodes.open_episode(episode)
        store.episodes.add_turn(episode, turn)
        assert store.episodes.get_episode(str(episode.id)).turns == (turn,)


FULL_SCORE = CoachScore(
    value=6.5,
    rationale="partly right",
    criteria=(CriterionMark(name="format", mark=9.0), CriterionMark(name="soundness", mark=4.5)),
    blamed="planner",
    correction="Read the question.",
    seconds=1.5,
    raw_reply='{"score": 6.5}',
    prompt_tokens=100,
    reply_tokens=20,
    cached_tokens=80,
    thought_tokens=5,
    cost_usd=0.25,
    request=CoachRequest(
        system="Judge.\x00", prompt="Case \udc80", settings={"model": "m", "thinking_budget": None}
    ),
    model_version="m-001",
    attempts=3,
    flags=("fake_score", "invisible"),
)


class TestScores:
    def test_read_back_in_turn_order(self, store: Store, play: Callable[..., Episode]) -> None:
        episode = play()
        unscored = Unscored(reason="timeout", detail="30 s", seconds=30.0, raw_reply="\x00")
        full = CoachScore(
            value=10.0,
            rationale="right",
            seconds=1.5,
            raw_reply='{"score": 10}',
            prompt_tokens=100,
            reply_tokens=0,
            cost_usd=0.0,
        )
        entries = (make_score(episode, 0, full), make_score(episode, 1, unscored))
        store.scores.add_scores(entries[::-1])
        assert store.scores.scores_of_episode(episode.id) == entries

    def test_a_repeat_changes_nothing(self, store: Store, play: Callable[..., Episode]) -> None:
        episode = play()
        store.scores.add_scores([make_score(episode, 0, 3.0)])
        store.scores.add_scores([make_score(episode, 0, 9.0)])
        assert store.scores.scores_of_episode(episode.id) == (make_score(episode, 0, 3.0),)

    def test_many_judge_an_action_and_one_trains(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        episode = play()
        trains = make_score(episode, 0, 3.0)
        again = make_score(episode, 0, 4.0, repeat_index=1, trained=False)
        store.scores.add_scores([trains, again])
        second = make_score(episode, 0, 5.0, identity=replace(RULE_COACH, model="other"))
        with pytest.raises(StoreError, match="uq_coach_score_trained"):
            store.scores.add_scores([second])
        assert set(store.scores.scores_of_episode(episode.id)) == {trains, again}
        assert [a.score_id for a in store.scores.list_scored_actions(run.id, "solver", 1)] == [
            trains.id
        ]

    def test_what_a_model_was_asked_and_said_comes_back(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        episode = play()
        asked = FULL_SCORE
        entry = replace(
            make_score(episode, 0, asked), label_visible=True, visibility=LabelVisibility.FULL
        )
        failed = Unscored(
            reason="rate_limited",
            detail="HTTP 429",
            attempts=7,
            request=asked.request,
            prompt_tokens=5,
            cost_usd=0.5,
            flags=("fake_score",),
        )
        store.scores.add_scores([entry, make_score(episode, 1, failed)])
        assert store.scores.scores_of_episode(episode.id) == (entry, make_score(episode, 1, failed))
        spending = store.figures.get_coach_spending(run.id)
        assert (spending.calls, spending.tokens) == (3 + 7, 100 + 20 + 5 + 5)
        assert spending.cost_usd == 0.25 + 0.5

    def test_a_real_score_takes_the_place_of_an_unscored_one(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        episode = play()
        missing = make_score(episode, 0, Unscored(reason="timeout", detail="30 s"))
        store.scores.add_scores([missing])
        real = replace(make_score(episode, 0, 6.0), id=ids.content_id("score", "asked again"))
        store.scores.add_scores([real])
        store.scores.add_scores([real])
        assert set(store.scores.scores_of_episode(episode.id)) == {
            replace(missing, trained=False),
            real,
        }
        assert [a.score_id for a in store.scores.list_scored_actions(run.id, "solver", 1)] == [
            real.id
        ]

    def test_rule_scores_cost_nothing(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        episode = play()
        store.scores.add_scores([make_score(episode, 0, 6.0)])
        assert store.figures.get_coach_spending(run.id) == Spending()


class TestScoredActions:
    def test_one_agents_finished_episodes_in_a_fixed_order(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        second, first = play(1), play(0)
        store.scores.add_scores([make_score(first, 1, 7.5)])
        store.scores.add_scores([make_score(second, 1, Unscored(reason="refused", detail="no"))])
        left_out = (
            play(2, reason=StopReason.FAILED, outcome=None),
            play(3, reason=None),
            play(4, iteration=2),
            play(5, phase="held_out"),
        )
        actions = store.scores.list_scored_actions(run.id, "executor", 1)
        assert [(action.episode_id, action.score) for action in actions] == [
            (first.id, 7.5),
            (second.id, None),
        ]
        assert not {episode.id for episode in left_out} & {a.episode_id for a in actions}

    def test_carries_the_exact_tokens(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        episode = play()
        (action,) = store.scores.list_scored_actions(run.id, "solver", 1)
        sampled = episode.turns[0].action
        assert action.action_id == ids.action_id(episode.id, 0)
        assert action.problem_id == episode.problem.id
        assert (action.prompt_token_ids, action.token_ids, action.logprobs) == (
            sampled.prompt_token_ids,
            sampled.token_ids,
            sampled.logprobs,
        )
        assert (action.rollout_index, action.turn_index, action.truncated) == (0, 0, False)

    def test_says_which_tokens_were_given(self, store: Store, run: Run) -> None:
        episode = make_episode(run, make_problem())
        store.episodes.open_episode(episode)
        turn = make_turn(make_policy(run))
        turn = replace(turn, action=replace(turn.action, given=(1, 2)))
        store.episodes.add_turn(episode, turn)
        store.episodes.close_episode(episode.closed(StopReason.MAX_TURNS, outcome=WRONG))
        assert store.episodes.get_episode(str(episode.id)).turns == (turn,)
        (action,) = store.scores.list_scored_actions(run.id, "solver", 1)
        assert action.given == (1, 2)

    @pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.LENGTH_IN_THOUGHT])
    def test_a_spent_budget_is_truncated(
        self, store: Store, run: Run, reason: FinishReason
    ) -> None:
        episode = make_episode(run, make_problem())
        store.episodes.open_episode(episode)
        turn = make_turn(make_policy(run), finish_reason=reason)
        store.episodes.add_turn(episode, turn)
        store.episodes.close_episode(episode.closed(StopReason.MAX_TURNS, outcome=WRONG))
        assert [
            action.truncated for action in store.scores.list_scored_actions(run.id, "solver", 1)
        ] == [True]


class TestUpdates:
    def test_reads_back_with_its_entries_in_order(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        entries = (entry(play(1), 0, 0.5, 1.0), entry(play(0), 0, None))
        update, policy, checkpoint = make_update(run, "solver", 1, entries)
        update = replace(
            update, metrics={"loss": 2.0, "kl": float("inf")}, skipped="kl is above its bound"
        )
        store.updates.add_update(update, policy, checkpoint)
        store.updates.add_update(update, policy, checkpoint)
        assert store.updates.get_update(run.id, "solver", 1) == update
        assert store.updates.get_update(run.id, "solver", 2) is None
        assert store.policies.get_policy_version(run.id, "solver", 1) == policy
        assert store.policies.list_checkpoints(run.id) == ((policy, checkpoint),)

    def test_what_an_episode_taught(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        episode, other = play(0), play(1)
        mine, others = entry(episode, 0, 0.5, 1.0), entry(other, 0, None)
        update, policy, checkpoint = make_update(run, "solver", 1, [mine, others])
        store.updates.add_update(update, policy, checkpoint)
        assert store.updates.updates_of_episode(episode.id) == {
            mine.action_id: (replace(update, entries=()), mine)
        }

    def test_all_or_nothing(self, store: Store, run: Run) -> None:
        nowhere = make_episode(run, make_problem())
        update, policy, checkpoint = make_update(run, "solver", 1, [entry(nowhere, 0, 1.0)])
        with pytest.raises(StoreError, match="fk_update_action_action_id"):
            store.updates.add_update(update, policy, checkpoint)
        assert store.updates.get_update(run.id, "solver", 1) is None
        assert store.policies.get_policy_version(run.id, "solver", 1) is None
        assert store.policies.list_checkpoints(run.id) == ()

    def test_checkpoints_oldest_first(self, store: Store, run: Run) -> None:
        for agent, iteration in (("solver", 1), ("solver", 2), ("executor", 1)):
            store.updates.add_update(*make_update(run, agent, iteration))
        steps = [
            (policy.step, policy.agent) for policy, _ in store.policies.list_checkpoints(run.id)
        ]
        assert steps == [(1, "executor"), (1, "solver"), (2, "solver")]

    def test_a_model_version_needs_its_checkpoint(self, store: Store, run: Run) -> None:
        update, policy, checkpoint = make_update(run, "solver", 1)
        with pytest.raises(NotFound, match="no checkpoint"):
            store.policies.set_model_version(checkpoint.id, "mappa-mathchat-solver", "1")
        store.updates.add_update(update, policy, checkpoint)
        assert store.policies.set_model_version(checkpoint.id, "mappa-mathchat-solver", "1")
        assert not store.policies.set_model_version(checkpoint.id, "mappa-mathchat-solver", "1")


class TestFigures:
    def test_sums_up_one_iteration(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        first = play(0)
        second = play(1, outcome=WRONG)
        play(2, reason=StopReason.FAILED, outcome=None)
        play(0, iteration=2)
        paid = CoachScore(value=0.0, rationale="as it is", seconds=0.125, cost_usd=0.25)
        store.scores.add_scores(
            [
                make_score(first, 0, 4.0),
                make_score(second, 0, 9.0),
                make_score(second, 0, paid, repeat_index=1, trained=False),
                make_score(first, 1, replace(paid, value=2.0)),
                make_score(second, 1, Unscored(reason="error", detail="", seconds=1.0)),
                make_score(second, 1, 7.0, repeat_index=1, trained=False),
            ]
        )
        figures = store.figures.get_iteration_figures(run.id, "train", 1)
        assert (figures.episodes, figures.failed, figures.successes) == (3, 1, 1)
        assert figures.success_rate == 0.5
        solver, executor = figures.agents
        assert (solver.agent, executor.agent) == ("solver", "executor")
        assert (solver.mean_score, solver.scored, solver.unscored) == (6.5, 2, 0)
        assert (executor.mean_score, executor.scored, executor.unscored) == (2.0, 1, 1)
        assert (solver.tool_calls, executor.tool_calls) == (0, 3)
        # By the scores that train; what the others cost was spent too.
        assert (figures.mean_score, figures.cost_usd) == (5.0, 0.5)
        assert (solver.actions, solver.tokens) == (3, 9)
        # 6 actions of 0.5 s, 3 tool calls of 0.25 s, 3 scores of 0.125 s and one of 1 s.
        assert figures.seconds_by_activity == {"engine": 3.0, "sandbox": 0.75, "coach": 1.375}

    def test_all_iterations_are_those_read_one_by_one(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        first = play(0, iteration=1)
        play(0, iteration=10)
        play(0, iteration=2)
        play(1, reason=StopReason.FAILED, outcome=None, iteration=2)
        play(0, phase="held_out", iteration=2)
        play(0, reason=None, iteration=3)
        store.scores.add_scores([make_score(first, 0, 4.0)])
        found = store.figures.list_iteration_figures(run.id)
        iterations = [(each.phase, each.iteration) for each in found]
        assert iterations == [("held_out", 2), ("train", 1), ("train", 2), ("train", 10)]
        get = store.figures.get_iteration_figures
        assert found == tuple(get(run.id, each.phase, each.iteration) for each in found)
        assert store.figures.list_iteration_figures(ids.content_id("run", "another")) == ()

    def test_of_nothing_is_nothing(self, store: Store, run: Run) -> None:
        figures = store.figures.get_iteration_figures(run.id, "held_out", 0)
        assert (figures.episodes, figures.agents, figures.success_rate) == (0, (), None)

    def test_closed_episodes_in_a_line_each(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        held_out = play(0, phase="held_out", iteration=0)
        failed = play(1, reason=StopReason.FAILED, outcome=None)
        scored = play(0)
        play(2, reason=None)
        store.scores.add_scores([make_score(scored, 0, 4.0), make_score(scored, 1, 9.0)])
        store.scores.add_scores([make_score(scored, 0, 0.0, repeat_index=1, trained=False)])
        summaries = store.episodes.list_episodes(run.id)
        assert [(s.id, s.phase, s.iteration, s.success, s.mean_score) for s in summaries] == [
            (held_out.id, "held_out", 0, True, None),
            (scored.id, "train", 1, True, 6.5),
            (failed.id, "train", 1, None, None),
        ]
        # What another time gave does not count.
        assert [summary.scored for summary in summaries] == [0, 2, 0]
        assert {summary.task_type for summary in summaries} == {"addition"}

    def test_the_lowest_and_highest_scored_episodes(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        """By the mean of the scores that train, lowest first; open and unscored ones are none."""
        points = [5.0, 1.0, 9.0, 3.0, 8.0, 4.0]
        played = [play(index) for index in range(len(points))]
        still_open, _unscored = play(7, reason=None), play(8)
        store.scores.add_scores(
            [
                *(make_score(each, 0, value) for each, value in zip(played, points, strict=True)),
                make_score(played[1], 1, 2.0),
                make_score(played[2], 0, 0.0, repeat_index=1, trained=False),
                make_score(still_open, 0, 0.0),
            ]
        )
        found = store.episodes.list_extreme_episodes(run.id, 2)
        assert [each.mean_score for each in found] == [1.5, 3.0, 8.0, 9.0]
        listed = {each.id: each for each in store.episodes.list_episodes(run.id)}
        assert [each.id for each in found] == [played[index].id for index in (1, 3, 4, 2)]
        assert all(each == listed[each.id] for each in found)
        every = store.episodes.list_extreme_episodes(run.id, 4)
        assert [each.mean_score for each in every] == [1.5, 3.0, 4.0, 5.0, 8.0, 9.0]

    def test_a_summary_has_what_is_known_of_the_problem_and_the_figures(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        """Also of a problem that an earlier version added without its attributes."""
        play(phase="held_out")
        (before,) = store.episodes.list_episodes(run.id)
        assert (before.attributes, before.figures) == ({}, RIGHT.figures)
        known = replace(make_problem(), attributes={"contest": "aime", "year": 2024})
        store.runs.add_manifest(run.id, "held_out", [known])
        (after,) = store.episodes.list_episodes(run.id)
        assert after.attributes == {"contest": "aime", "year": 2024}
        assert store.episodes.get_episode(str(after.id)).problem == known
        store.runs.add_manifest(run.id, "train", [replace(known, attributes={"year": 1})])
        assert store.episodes.list_episodes(run.id)[0].attributes["year"] == 2024

    def test_held_out_episodes_in_rollout_order(
        self, store: Store, run: Run, play: Callable[..., Episode]
    ) -> None:
        measured = Outcome(
            success=False, answer="submission.csv", method="csv", metric="rmse", value=None,
            charged=2.0, skill=0.0, detail="an id twice",
        )  # fmt: skip
        play(2, phase="held_out", reason=StopReason.FAILED, outcome=None)
        play(0, phase="held_out")
        play(1, phase="held_out", outcome=WRONG)
        play(3, phase="held_out", outcome=measured)
        play(4, phase="held_out", reason=None)
        play(0)
        found = store.episodes.list_episodes(run.id, "held_out", 1)
        assert {one.problem_id for one in found} == {make_problem().id}
        assert [(o.success, o.failed, o.invalid, o.metric) for o in found] == [
            (True, False, False, "rmse"),
            (False, False, True, None),
            (None, True, False, None),
            (False, False, True, "rmse"),
        ]
        assert store.episodes.list_episodes(run.id, "held_out", 2) == ()

    def test_the_manifest_of_a_run_may_be_written_twice(self, store: Store, run: Run) -> None:
        problems = [make_problem("one"), make_problem("two")]
        for _ in range(2):
            store.runs.add_manifest(run.id, "train", problems)
            store.runs.add_manifest(run.id, "held_out", problems[:1])


def test_a_killed_tool_call_comes_back(store: Store, run: Run) -> None:
    episode = make_episode(run, make_problem())
    store.episodes.open_episode(episode)
    killed = replace(make_tool_result(ToolStatus.TIMEOUT), cpu_seconds=None, peak_memory_bytes=None)
    turn = make_turn(make_policy(run), tool_result=replace(killed, written=(), rejected=()))
    store.episodes.add_turn(episode, turn)
    assert store.episodes.get_episode(str(episode.id)).turns == (turn,)


def test_closing_twice_is_safe(store: Store) -> None:
    store.close()
    store.close()
