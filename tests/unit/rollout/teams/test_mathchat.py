"""MathChat plays one episode: who acts when, on what, and what no agent ever gets to see."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, Message, Observation, StopReason
from mappa_core.core.records.tools import ToolResult, ToolStatus
from mappa_core.rollout.teams import TEAMS, load_team
from mappa_core.rollout.teams.mathchat import (
    EXECUTOR,
    SOLVER,
    VERIFIER,
    MathChat,
    output_text,
)
from mappa_core.rollout.teams.prompts import PromptSet, parse_prompt
from tests.builders import (
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_tool_result,
    make_turn,
)

RUN = make_run()
HEAD = "---\nversion: 1\noutput_chars: 160\n---\n[system]\nBe brief.\n[template]\n"
WORDS = {
    "problem_solver": "{{problem}}",
    "code_executor": "{{problem}}\n{{problem_solver}}\n"
    "[feedback]\nOutput: {{code_executor.output}}",
    "verifier": "{{problem}}\nOutput: {{code_executor.output}}",
}


def team_of_few_words() -> MathChat:
    """MathChat with prompts of its own, so that rewording a shipped prompt breaks no test here."""
    prompts = {
        agent.name: parse_prompt(
            HEAD + WORDS[agent.name], agent=agent.name, sees=agent.sees, source=agent.name
        )
        for agent in (SOLVER, EXECUTOR, VERIFIER)
    }
    return MathChat(prompts=PromptSet(name="own-1", version=1, sha256="", prompts=prompts))


TEAM = team_of_few_words()
SMALL = load_team("mathchat", "small-1")
PAPER = load_team("mathchat", "paper-1")
EVERY = pytest.mark.parametrize("team", [TEAM, SMALL, PAPER], ids=["own", "small-1", "paper-1"])
PROGRAM = "```python\nprint(14 + 27)\n```"
SECRET = "731946"


def printed(text: str, status: ToolStatus = ToolStatus.OK, stderr: str = "") -> ToolResult:
    return replace(make_tool_result(status), stdout=text, stderr=stderr)


def started() -> Episode:
    problem = make_problem("Ana has 14 pens and buys 27 more. How many pens does Ana have now?")
    return make_episode(RUN, replace(problem, answer=SECRET))


def acted(
    episode: Episode,
    text: str,
    result: ToolResult | None = None,
    *,
    token_ids: tuple[int, ...] = (7, 8, 2),
    team: MathChat = TEAM,
) -> Episode:
    """The episode after the next agent said `text`."""
    observation = next_one(episode, team)
    turn = make_turn(
        make_policy(RUN, observation.agent),
        len(episode.turns),
        text=text,
        token_ids=token_ids,
        tool_result=result,
    )
    return episode.with_turn(replace(turn, observation=observation))


def next_one(episode: Episode, team: MathChat = TEAM) -> Observation:
    observation = team.next_observation(episode)
    assert observation is not None
    return observation


def asked(episode: Episode, team: MathChat = TEAM) -> str:
    """The last thing that the next agent reads."""
    return next_one(episode, team).messages[-1].content


def played(executor_text: str, result: ToolResult | None) -> Episode:
    """Plan and program, before the next turn."""
    return acted(acted(started(), "Plan: 14 + 27"), executor_text, result)


def agents_of(episode: Episode) -> list[str]:
    return [turn.agent for turn in episode.turns]


@EVERY
def test_three_turns_when_the_program_prints(team: MathChat) -> None:
    episode = started()
    episode = acted(episode, "Plan: 14 + 27", team=team)
    episode = acted(episode, PROGRAM, printed("41\n"), team=team)
    episode = acted(episode, r"The answer is \boxed{41}.", team=team)
    assert agents_of(episode) == ["problem_solver", "code_executor", "verifier"]
    assert team.next_observation(episode) is None
    assert team.stop_reason(episode) is StopReason.ANSWERED
    assert team.final_answer(episode) == "41"


@pytest.mark.parametrize(
    "result",
    [
        None,
        printed(""),
        printed(" \n"),
        printed("4", ToolStatus.NONZERO, "NameError: x"),
        printed("", ToolStatus.TIMEOUT),
    ],
)
def test_the_executor_acts_again_after_nothing_printed_but_only_once(
    result: ToolResult | None,
) -> None:
    episode = played(PROGRAM, result)
    assert next_one(episode).agent == "code_executor"
    episode = acted(episode, PROGRAM, result)
    assert next_one(episode).agent == "verifier"
    episode = acted(episode, "I do not know.")
    assert TEAM.next_observation(episode) is None
    # Everybody spoke: that the team boxed nothing is the outcome's matter.
    assert TEAM.stop_reason(episode) is StopReason.ANSWERED
    assert TEAM.final_answer(episode) is None


def test_each_sees_what_its_spec_says() -> None:
    episode = started()
    statement = episode.problem.statement
    assert asked(episode) == statement
    episode = acted(episode, "Plan: 14 + 27")
    assert asked(episode) == f"{statement}\nPlan: 14 + 27"
    episode = acted(episode, PROGRAM, printed("41\n"))
    assert asked(episode) == f"{statement}\nOutput: 41"


def test_the_second_turn_continues_the_first_with_the_ids_that_were_sampled() -> None:
    before = acted(started(), "Plan: 14 + 27")
    first = next_one(before).messages
    failed = printed("", ToolStatus.NONZERO, "NameError: x")
    episode = acted(before, PROGRAM, failed, token_ids=(11, 12, 13))
    second = next_one(episode).messages
    assert second[: len(first)] == first
    said, told = second[len(first) :]
    assert said == Message(role="assistant", content=PROGRAM, token_ids=(11, 12, 13))
    assert told.role == "user"
    assert told.content == "Output: the program failed (nonzero) NameError: x"
    assert all(message.token_ids is None for message in (*first, told))


def test_the_verifier_hears_of_the_last_program_only() -> None:
    episode = acted(played("first", printed("40", ToolStatus.NONZERO)), "second", printed("41"))
    prompt = asked(episode)
    assert "41" in prompt
    assert "40" not in prompt


def test_a_fresh_reader_never_sees_sampled_ids_of_others() -> None:
    episode = played(PROGRAM, printed("41"))
    assert all(message.token_ids is None for message in next_one(episode).messages)


@EVERY
def test_thinking_is_neither_run_nor_passed_on(team: MathChat) -> None:
    thought = "<think>```python\nprint('thought')\n```</think>"
    assert team.code_in("code_executor", thought) is None
    assert team.code_in("code_executor", thought + PROGRAM) == "print(14 + 27)"
    episode = acted(started(), "<think>secretly</think>Plan: 14 + 27", team=team)
    assert "secretly" not in asked(episode, team)
    assert "Plan: 14 + 27" in asked(episode, team)
    episode = acted(episode, "<think>silently</think>" + PROGRAM, printed("41"), team=team)
    assert "silently" not in asked(episode, team)
    episode = acted(episode, r"<think>\boxed{1}</think>\boxed{41}", team=team)
    assert team.final_answer(episode) == "41"


def test_only_the_executor_runs_code() -> None:
    assert TEAM.code_in("code_executor", PROGRAM) == "print(14 + 27)"
    for agent in ("problem_solver", "verifier", "stranger"):
        assert TEAM.code_in(agent, PROGRAM) is None
    assert TEAM.code_in("code_executor", "no program here") is None


@given(
    st.sampled_from([TEAM, SMALL, PAPER]),
    st.lists(st.sampled_from(["", "{{problem}}", "{{answer}}", PROGRAM, "41"]), max_size=5),
    st.sampled_from([None, printed("41"), printed(""), printed("", ToolStatus.KILLED)]),
)
def test_the_expected_answer_is_in_no_prompt(
    team: MathChat, texts: list[str], result: ToolResult | None
) -> None:
    episode = started()
    for text in texts:
        observation = team.next_observation(episode)
        if observation is None:
            break
        assert not any(SECRET in message.content for message in observation.messages)
        episode = acted(episode, text, result, team=team)


def test_what_agents_write_is_no_template() -> None:
    episode = acted(started(), "{{code_executor.output}} and {{problem}}")
    assert asked(episode).endswith("\n{{code_executor.output}} and {{problem}}")


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "no program was run"),
        (printed("41\n"), "41"),
        (printed(" \n "), "the program printed nothing"),
        (printed("", ToolStatus.TIMEOUT), "the program failed (timeout)"),
        (printed("4", ToolStatus.NONZERO, "E"), "the program failed (nonzero) 4\nE"),
        (printed("abcdefghij"), "abc ...5 characters left out... ij"),
    ],
)
def test_output_in_words(result: ToolResult | None, text: str) -> None:
    assert output_text(result, 5 if result and "abc" in result.stdout else 100) == text


def test_an_unfinished_episode_has_no_answer() -> None:
    assert TEAM.final_answer(started()) is None


def test_load_team_finds_mathchat_and_names_the_nearest() -> None:
    assert load_team("mathchat", "small-1") == SMALL
    for name, hint in (
        ("mathcat", "did you mean 'mathchat'?"),
        ("zzz", f"there are: {', '.join(TEAMS)}"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_team(name, "small-1")
        assert str(caught.value) == f"no team is called {name!r}: {hint}"


@pytest.mark.parametrize(
    ("prompts", "hint"), [("smal-1", "small-1"), ("zzz", "small-1"), ("..", "paper-1")]
)
def test_unknown_prompts_are_one_line_that_names_what_there_is(prompts: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_team("mathchat", prompts)
    message = str(caught.value)
    assert message.startswith(f"team mathchat has no prompts {prompts!r}: try ")
    assert hint in message
    assert "\n" not in message


def test_prompt_sets_are_told_apart_by_their_words() -> None:
    assert SMALL.prompts.sha256 != PAPER.prompts.sha256
    assert len(SMALL.prompts.sha256) == 64
    assert set(SMALL.prompts.prompts) == {agent.name for agent in SMALL.agents}
