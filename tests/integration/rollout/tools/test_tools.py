"""A team with tools beyond Python, from its configuration to the rows and the coach."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mappa_cli.printing.episode import print_episode
from mappa_core.coach.case import case_of
from mappa_core.coach.evidence import case_text, marker_of
from mappa_core.coach.rules.coach import RuleCoach
from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Action, Episode, Observation, StopReason
from mappa_core.core.records.scores import CoachScore, LabelVisibility
from mappa_core.core.records.tools import Limits, ToolStatus
from mappa_core.core.settings import Settings
from mappa_core.rollout.episode import EpisodeRecords, play_episode
from mappa_core.rollout.protocols import Toolbox
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.tools.config import ToolsConfig
from mappa_core.rollout.tools.opening import check_tools, open_tools
from mappa_core.store.store import Store
from tests.builders import make_episode, make_policy, make_problem, make_run, make_turn
from tests.fakes.acting import NoPython, ScriptedRunner

COMMAND = [sys.executable, "-m", "tests.fakes.units_server"]
RUN = make_run()
PROBLEM = replace(make_problem("How many metres are 3 km?"), answer="3000")
CONVERT = (
    '```tool\n{"name": "units.convert", "arguments": {"value": 3, "unit": "km", "to": "m"}}\n```'
)
TYPO = CONVERT.replace("convert", "convrt")
DIE = '```tool\n{"name": "units.die"}\n```'
ANSWER = r"That is \boxed{3000}."


def config(**server: object) -> ToolsConfig:
    return ToolsConfig.model_validate(
        {"agents": {"solver": ["python", "mcp:units"]}, "servers": {"units": server}}
    )


@pytest.fixture
def played(store: Store, tmp_path: Path) -> list[Episode]:
    """An episode with a slip, a call and an answer; one whose call kills; one after that."""
    store.runs.add_run(RUN)
    store.episodes.add_problems([PROBLEM])
    store.policies.add_policy_version(make_policy(RUN))
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path / "home"})
    scripts = ([TYPO, CONVERT, ANSWER], [DIE], [CONVERT, ANSWER])

    async def play() -> list[Episode]:
        async with AsyncExitStack() as stack:
            single = load_team("single", "tools-1")
            team, toolbox = await open_tools(single, config(command=COMMAND), settings, stack)
            return [
                await play_script(store, team, toolbox, script, number)
                for number, script in enumerate(scripts)
            ]

    return asyncio.run(play())


async def play_script(
    store: Store, team: Team, toolbox: Toolbox | None, script: Sequence[str], number: int
) -> Episode:
    def act(current: Episode, observation: Observation) -> Action:
        said = script[len(current.turns)]
        return make_turn(make_policy(RUN), len(current.turns), text=said).action

    limits = Limits(wall_seconds=10)
    runner = ScriptedRunner(act=act, sandbox=NoPython(), limits=limits, toolbox=toolbox)
    episode = make_episode(RUN, PROBLEM, rollout_index=number)
    return await play_episode(episode, team=team, records=EpisodeRecords(store), runner=runner)


def test_calls_are_rows_that_store_show_and_coach_understand(
    store: Store, played: list[Episode]
) -> None:
    done, killed, after = played
    stored = store.episodes.get_episode(str(done.id))
    slip, call, none = (turn.tool_result for turn in stored.turns)
    assert slip is not None
    assert (slip.status, slip.tier) == (ToolStatus.NONZERO, "mcp")
    assert slip.stderr.startswith("no tool is called 'units.convrt'; there are: units.convert, ")
    assert call is not None
    assert (call.status, call.stdout, call.tier) == (ToolStatus.OK, "3000", "mcp:units")
    assert call.code in CONVERT
    assert none is None
    assert done.outcome is not None
    assert done.outcome.success

    seen = [turn.observation.messages for turn in stored.turns]
    assert "- units.convert: Convert a length between mm, cm, m and km." in seen[0][0].content
    assert "no tool is called" in seen[1][-1].content
    assert seen[2][-1].content.startswith("Output: 3000\n")

    # A dead server costs the episode that met it, with a name, and no other.
    assert killed.stop_reason is StopReason.FAILED
    assert killed.error is not None
    assert killed.error.startswith("tool server units died in a call of die: ")
    assert after.outcome is not None
    assert after.outcome.success

    page = StringIO()
    print_episode(Console(file=page, width=100), store, stored, in_full=False)
    assert "units.convert" in page.getvalue()
    assert "mcp:units" in page.getvalue()

    # A call that fails is a program that fails; words that rules cannot read settle no number.
    cases = [case_of(done, turn, LabelVisibility.NEVER) for turn in done.turns]
    evidence = case_text(cases[1], marker_of(cases[1]))
    assert "Its program ended: ok." in evidence
    assert "\n3000\n" in evidence
    scores = [asyncio.run(RuleCoach("single").score(case)) for case in cases]
    values = [score.value for score in scores if isinstance(score, CoachScore)]
    assert values == [3, 7, 7]


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        ({"command": ["/nowhere/server"]}, "tools.servers.units.command: there is no program"),
        (
            {"command": COMMAND, "environment": ["UNITS_KEY"]},
            "tool server units needs UNITS_KEY in the environment",
        ),
        (
            {"url": "http://127.0.0.1:1", "token": "UNITS_KEY"},
            "tool server units needs UNITS_KEY in the environment",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_is_written(
    server: dict[str, object], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNITS_KEY", raising=False)
    with pytest.raises(ConfigError) as caught:
        check_tools(load_team("single", "tools-1"), config(**server))
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_a_server_that_nobody_uses_is_not_started(tmp_path: Path) -> None:
    idle = ToolsConfig.model_validate({"servers": {"units": {"command": ["/nowhere/server"]}}})
    settings = Settings.model_validate({"MAPPA_HOME": tmp_path})

    async def opened() -> None:
        async with AsyncExitStack() as stack:
            team = load_team("single", "small-1")
            assert await open_tools(team, idle, settings, stack) == (team, None)

    asyncio.run(opened())
