"""Single, debate and mixture play whole episodes from a script."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from mappa_core.app.checks import coached_team
from mappa_core.coach.config import CoachConfig
from mappa_core.coach.opening import check_coaches, with_peers
from mappa_core.coach.rubrics import load_rubrics
from mappa_core.coach.rules import load_rules
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Episode, StopReason
from mappa_core.core.records.scores import CoachCase
from mappa_core.core.records.tools import ToolResult
from mappa_core.core.settings import Settings
from mappa_core.rollout.config import RolloutConfig
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.teams.debate import Debate
from mappa_core.rollout.teams.mathchat import MathChat
from mappa_core.rollout.teams.prompts import Prompt
from mappa_core.rollout.teams.single import Single
from tests.builders import (
    make_episode,
    make_policy,
    make_problem,
    make_run,
    make_tool_result,
    make_turn,
)

RUN = make_run()
STORY = "Ana has 14 pens and buys 27 more. How many pens does Ana have now?"
PROGRAM = "```python\nprint(14 + 27)\n```"
SECRET = "731946"

Said = str | tuple[str, ToolResult]


def printed(text: str) -> ToolResult:
    return replace(make_tool_result(), stdout=text)


def play(team: Team, script: Sequence[Said]) -> tuple[Episode, list[str]]:
    """The episode in which the next agent says the next line, and what each was asked last."""
    episode = make_episode(RUN, replace(make_problem(STORY), answer=SECRET))
    asked: list[str] = []
    for said in script:
        observation = team.next_observation(episode)
        assert observation is not None
        text, result = (said, None) if isinstance(said, str) else said
        asked.append(observation.messages[-1].content)
        turn = make_turn(
            make_policy(RUN, observation.agent), len(episode.turns), text=text, tool_result=result
        )
        episode = episode.with_turn(replace(turn, observation=observation))
    return episode, asked


def speakers(episode: Episode) -> list[str]:
    return [turn.agent for turn in episode.turns]


def test_single_runs_a_program_reads_its_output_and_answers() -> None:
    team = load_team("single", "small-1")
    episode, asked = play(team, [(PROGRAM, printed("41\n")), r"The answer is \boxed{41}."])
    assert asked[0] == STORY
    assert asked[1].startswith("Output: 41\n")
    first, second = (turn.observation.messages for turn in episode.turns)
    # As it was sampled, so that nothing is tokenised twice and the prefix stays.
    assert second[: len(first)] == first
    assert second[len(first)].token_ids == episode.turns[0].action.token_ids
    assert team.next_observation(episode) is None
    assert team.final_answer(episode) == "41"
    assert team.stop_reason(episode) is StopReason.ANSWERED


def test_single_stops_after_three_turns_without_an_answer() -> None:
    team = load_team("single", "small-1")
    episode, asked = play(team, ["Let me think.", (PROGRAM, printed("41")), "41"])
    assert asked[1].startswith("Output: no program was run\n")
    assert team.next_observation(episode) is None
    assert team.final_answer(episode) is None
    assert team.stop_reason(episode) is StopReason.MAX_TURNS


@pytest.mark.parametrize(("name", "turns"), [("single", 1), ("debate", 3), ("mathchat", 2)])
def test_a_feedback_may_quote_the_problem(name: str, turns: int) -> None:
    def quoting(prompt: Prompt) -> Prompt:
        return replace(prompt, feedback="Again: {{problem}}")

    team = load_team(name, "small-1")
    prompts = {agent: quoting(prompt) for agent, prompt in team.prompts.prompts.items()}
    assert isinstance(team, Single | Debate | MathChat)
    team = replace(team, prompts=replace(team.prompts, prompts=prompts))
    episode, _ = play(team, ["Hm."] * turns)
    observation = team.next_observation(episode)
    assert observation is not None
    assert observation.messages[-1].content == f"Again: {STORY}"


@pytest.mark.parametrize("name", ["single", "debate"])
def test_an_empty_box_is_no_answer(name: str) -> None:
    team = load_team(name, "small-1")
    episode = make_episode(RUN, make_problem(STORY))
    while (observation := team.next_observation(episode)) is not None:
        policy = make_policy(RUN, observation.agent)
        turn = make_turn(policy, len(episode.turns), text=r"The answer is \boxed{}.")
        episode = episode.with_turn(replace(turn, observation=observation))
    assert team.final_answer(episode) is None
    assert team.stop_reason(episode) is StopReason.MAX_TURNS


def test_single_runs_no_program_beside_its_answer() -> None:
    team = load_team("single", "small-1")
    assert team.code_in("solver", PROGRAM) == "print(14 + 27)"
    assert team.code_in("solver", PROGRAM + r" \boxed{41}") is None
    assert team.code_in("stranger", PROGRAM) is None


def test_debaters_see_each_other_only_after_a_whole_round() -> None:
    team = load_team("debate", "small-1")
    first = [r"one says \boxed{41}", r"<think>hm</think>two says \boxed{13}", r"three says nothing"]
    second = [r"\boxed{41}", r"\boxed{ 41 }", r"\boxed{13}"]
    episode, asked = play(team, [*first, *second])
    assert speakers(episode) == ["debater_1", "debater_2", "debater_3"] * 2
    assert asked[:3] == [STORY] * 3
    # The second debater reads the first round, not what the first has just said again.
    assert "Debater 1: one says" in asked[4]
    assert "Debater 3: three says nothing" in asked[4]
    assert "Debater 2" not in asked[4]
    assert r"two says \boxed{13}" in asked[3]
    assert "hm" not in asked[3]
    assert team.next_observation(episode) is None
    assert team.final_answer(episode) == "41"
    assert team.stop_reason(episode) is StopReason.ANSWERED


@pytest.mark.parametrize(
    ("boxed", "answer"),
    [
        (("1,000", "7", "1000"), "1,000"),
        (("5", "7", "7"), "7"),
        (("5", "6", "7"), "5"),
        ((None, "6", "7"), "6"),
        ((None, None, None), None),
        (("", "", "7"), "7"),
        (("", " ", None), None),
        (("$", "$", "7"), "$"),
    ],
)
def test_the_majority_of_the_last_round_decides_and_of_equals_the_first(
    boxed: tuple[str | None, ...], answer: str | None
) -> None:
    team = load_team("debate", "small-1")
    said = ["nothing" if each is None else rf"\boxed{{{each}}}" for each in boxed]
    episode, _ = play(team, [r"\boxed{99}"] * 3 + said)
    assert team.final_answer(episode) == answer
    reason = StopReason.MAX_TURNS if answer is None else StopReason.ANSWERED
    assert team.stop_reason(episode) is reason


def test_the_aggregator_alone_sees_the_proposals() -> None:
    team = load_team("mixture", "small-1")
    episode, asked = play(
        team, ["Plan: 14 + 27", r"<think>psst</think>It is \boxed{41}", r"\boxed{41}"]
    )
    assert speakers(episode) == ["proposer_1", "proposer_2", "aggregator"]
    assert asked[:2] == [STORY, STORY]
    assert asked[2] == f"{STORY}\nOne says: Plan: 14 + 27\nOne says: It is \\boxed{{41}}"
    assert team.next_observation(episode) is None
    assert team.final_answer(episode) == "41"
    assert team.final_answer(make_episode(RUN, make_problem())) is None


@pytest.mark.parametrize("name", ["single", "debate", "mixture"])
def test_no_agent_is_shown_the_answer_and_every_agent_has_rules(name: str) -> None:
    team = load_team(name, "small-1")
    said = r"14 + 27 = 41. The answer is \boxed{41}."
    episode = make_episode(RUN, replace(make_problem(STORY), answer=SECRET))
    while (observation := team.next_observation(episode)) is not None:
        assert SECRET not in str(observation)
        case = CoachCase(
            statement=STORY,
            agent=observation.agent,
            messages=observation.messages,
            text=said,
            tool_result=None,
            earlier=episode.turns,
        )
        judged = load_rules(team.rules).judges[observation.agent](case)
        assert judged is not None
        assert judged.points == 10
        turn = make_turn(make_policy(RUN, observation.agent), len(episode.turns), text=said)
        episode = episode.with_turn(replace(turn, observation=observation))
    assert team.final_answer(episode) == "41"
    assert {turn.agent for turn in episode.turns} == {agent.name for agent in team.agents}


def test_the_solver_is_judged_by_its_program_until_it_answers() -> None:
    def points(text: str, result: ToolResult | None) -> float:
        case = CoachCase(
            statement=STORY, agent="solver", messages=(), text=text, tool_result=result, earlier=()
        )
        judged = load_rules("single").judges["solver"](case)
        assert judged is not None
        return judged.points

    ran = replace(printed("41\n"), code="print(14 + 27)")
    assert points(PROGRAM, ran) == 10
    assert points(PROGRAM, replace(ran, stdout="")) == 3
    assert points(r"\boxed{41}", None) == 10
    assert points("Let me think.", None) == 0


def test_a_debate_has_as_many_sides_and_rounds_as_are_asked_for() -> None:
    rollout = RolloutConfig(debaters=5, agent_turns={"debater": 3})
    team = load_team("debate", "small-1", rollout)
    names = [f"debater_{number}" for number in range(1, 6)]
    script = [rf"Round {turn // 5 + 1}: \boxed{{{turn}}}" for turn in range(12)]
    episode, asked = play(team, [*script, r"\boxed{9}", r"\boxed{7}", r"\boxed{9}"])
    assert speakers(episode) == names * 3
    assert team.next_observation(episode) is None
    assert team.final_answer(episode) == "9"
    # The fourth has the first one's words, and reads the four others.
    heard = [f"Debater {number}" for number in (1, 2, 3, 5)]
    assert re.findall(r"Debater \d", asked[8]) == heard
    assert asked[8].startswith("The others say:\n")
    assert load_team("debate", "small-1", RolloutConfig()) == load_team("debate", "small-1")
    # Coaches know them all.
    coached = coached_team(team)
    assert check_coaches(CoachConfig(), Settings(), coached) is None
    rubrics = with_peers(load_rubrics("debate", "paper-1"), coached.agents).rubrics
    assert {agent: rubrics[agent].agent for agent in names} == dict(zip(names, names, strict=True))
    assert all(load_rules("debate").judge_of(name) for name in names)
    assert load_rules("debate").judge_of("stranger_2") is None


def test_turns_are_set_of_those_that_may_act_again() -> None:
    team = load_team("mathchat", "small-1", RolloutConfig(agent_turns={"code_executor": 4}))
    failing = (PROGRAM, replace(make_tool_result(), stdout=""))
    episode, _ = play(team, ["plan", failing, failing, failing, failing, r"\boxed{1}"])
    assert speakers(episode) == ["problem_solver", *["code_executor"] * 4, "verifier"]
    for turns, name in (({"verifier": 2}, "mathchat"), ({"debater_1": 2}, "debate")):
        with pytest.raises(ConfigError, match=r"rollout.agent_turns.* (code_executor|debater) act"):
            load_team(name, "small-1", RolloutConfig(agent_turns=turns))
    with pytest.raises(ConfigError, match=r"rollout\.debaters is of team debate"):
        load_team("single", "small-1", RolloutConfig(debaters=3))
