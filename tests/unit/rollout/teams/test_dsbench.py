"""The data-science team: who acts when, what each is told, and when it stops."""

import time
from dataclasses import replace

import pytest

from mappa_core.core.records.episodes import Episode, StopReason
from mappa_core.core.records.tools import RejectedFile, ToolResult, ToolStatus
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import duties_of
from tests.builders import make_episode, make_policy, make_problem, make_run, make_turn
from tests.unit.core.test_file_trail import turn as file_turn

RUN = make_run()
SMALL, PAPER = load_team("dsbench", "small-1"), load_team("dsbench", "paper-1")
EVERY = pytest.mark.parametrize("team", [SMALL, PAPER], ids=["small-1", "paper-1"])
HIDDEN = '{"metric": "rmse", "labels_sha256": "feedbeef"}'
GOOD = {
    "data_engineer": ("X_train.pkl", "y_train.pkl", "X_test.pkl"),
    "modeler": ("model.pkl",),
    "analyst": ("submission.csv",),
}


def started() -> Episode:
    return make_episode(RUN, replace(make_problem("Predict price (regression)."), answer=HIDDEN))


def acted(
    episode: Episode,
    agent: str,
    files: tuple[str, ...] = (),
    *,
    printed: str = "fine",
    status: ToolStatus = ToolStatus.OK,
) -> Episode:
    made = file_turn(len(episode.turns), agent, "", status=status)
    assert isinstance(made.tool_result, ToolResult)
    written = file_turn(0, agent, "", status=status).tool_result
    assert written is not None
    template = file_turn(0, agent, "z").tool_result
    assert template is not None
    artifacts = tuple(replace(template.written[0], name=name) for name in files)
    result = replace(made.tool_result, written=artifacts, stdout=printed)
    return episode.with_turn(replace(made, tool_result=result))


def said(episode: Episode, agent: str, text: str) -> Episode:
    return episode.with_turn(make_turn(make_policy(RUN, agent), len(episode.turns), text=text))


def last_words(team, episode: Episode) -> str:
    observation = team.next_observation(episode)
    assert observation is not None
    return observation.messages[-1].content


def next_agent(episode: Episode) -> str | None:
    observation = SMALL.next_observation(episode)
    return None if observation is None else observation.agent


def test_each_hands_over_as_soon_as_its_files_are_there():
    episode = started()
    for agent, files in GOOD.items():
        assert next_agent(episode) == agent
        episode = acted(episode, agent, files)
    assert next_agent(episode) is None
    assert SMALL.stop_reason(episode) is StopReason.ANSWERED
    assert SMALL.final_answer(episode) == "submission.csv"


def test_four_turns_and_not_one_more():
    episode = started()
    for _ in range(4):
        assert next_agent(episode) == "data_engineer"
        episode = acted(episode, "data_engineer", ("X_train.pkl",))
    assert next_agent(episode) == "modeler"
    for agent in ("modeler", "analyst"):
        for _ in range(4):
            episode = acted(episode, agent, status=ToolStatus.NONZERO)
    assert next_agent(episode) is None
    assert SMALL.stop_reason(episode) is StopReason.MAX_TURNS
    assert SMALL.final_answer(episode) is None


def test_a_program_that_fails_after_writing_everything_has_not_finished():
    episode = acted(started(), "data_engineer", GOOD["data_engineer"], status=ToolStatus.TIMEOUT)
    assert next_agent(episode) == "data_engineer"


def test_the_word_done_stops_and_other_words_do_not():
    assert next_agent(said(started(), "data_engineer", "I am DONE thinking")) == "data_engineer"
    assert next_agent(said(started(), "data_engineer", "All is ready.\n**DONE**")) == "modeler"
    began = time.process_time()
    at_length = "x" + "\n" * 2**16 + "done"
    assert next_agent(said(started(), "data_engineer", at_length)) == "data_engineer"
    assert time.process_time() - began < 10  # milliseconds, or minutes
    hidden = "<think>\nDONE\n</think> not yet"
    assert next_agent(said(started(), "data_engineer", hidden)) == "data_engineer"


@EVERY
def test_the_next_agent_reads_what_was_printed_and_not_the_code(team):
    episode = acted(started(), "data_engineer", GOOD["data_engineer"], printed="7 features")
    words = last_words(team, episode)
    assert "7 features" in words
    assert "X_test.pkl" in words
    assert episode.turns[0].action.text not in words


@EVERY
def test_an_agent_is_told_what_is_missing_and_how_many_turns_are_left(team):
    episode = acted(started(), "data_engineer", ("X_train.pkl",), printed="saved")
    words = last_words(team, episode)
    assert "saved" in words
    assert "y_train.pkl, X_test.pkl" in words
    assert "urns left: 3" in words
    failed = acted(started(), "data_engineer", status=ToolStatus.OUT_OF_MEMORY)
    assert "the program failed (out_of_memory" in last_words(team, failed)
    silent = said(started(), "data_engineer", "hm")
    assert "no program was run" in last_words(team, silent)


@EVERY
def test_an_agent_is_told_which_of_its_files_was_turned_away_and_why(team):
    (turn,) = acted(started(), "data_engineer", ("y_train.pkl",)).turns
    assert turn.tool_result is not None
    refused = RejectedFile(name="X_train.pkl", reason="20.0 MiB, and one file may have 16.0 MiB")
    result = replace(turn.tool_result, rejected=(refused,) * 9)
    words = last_words(team, started().with_turn(replace(turn, tool_result=result)))
    assert words.count(f"not handed on: X_train.pkl ({refused.reason})\n") == 4


@EVERY
def test_a_later_turns_prompt_begins_with_the_earlier_one(team):
    first = team.next_observation(started())
    episode = acted(started(), "data_engineer", ("X_train.pkl",))
    second = team.next_observation(episode)
    assert first is not None
    assert second is not None
    assert second.messages[: len(first.messages)] == first.messages
    assert second.messages[len(first.messages)].token_ids == episode.turns[0].action.token_ids


@EVERY
def test_no_agent_sees_the_grading_key(team):
    episode = started()
    for agent, files in GOOD.items():
        observation = team.next_observation(episode)
        assert observation is not None
        assert not any("feedbeef" in message.content for message in observation.messages)
        episode = acted(episode, agent, files)


def test_a_clipped_output_keeps_both_ends():
    episode = acted(started(), "data_engineer", (), printed="first" + "x" * 9000 + "last")
    words = last_words(SMALL, episode)
    assert "first" in words
    assert "last" in words
    assert len(words) < 1000


def test_duties_are_the_chains():
    assert {duty.agent: duty.files for duty in duties_of(SMALL)} == GOOD
