"""Tools beyond Python: who has which, what is a call, and what is wrong with one."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.tools import Json, RefusedCall, Tool, ToolCall
from mappa_core.rollout.teams import load_team
from mappa_core.rollout.teams.base import Team
from mappa_core.rollout.tools.calls import read_call
from mappa_core.rollout.tools.config import ToolsConfig
from mappa_core.rollout.tools.team import agents_with_tools, describe_tools, team_with_tools
from tests.builders import make_episode, make_problem, make_run

CONVERT = Tool(
    server="units",
    name="convert",
    description="Convert\na length.",
    schema={
        "type": "object",
        "properties": {"value": {"type": "number"}, "to": {"enum": ["m", "km"]}},
        "required": ["value", "to"],
    },
)
SEARCH = Tool(server="web", name="search", description="", schema={"type": "object"})
SERVERS = {"units": {"command": ["units"]}, "web": {"url": "http://127.0.0.1:1/mcp"}}
PROGRAM = "```python\nprint(14 + 27)\n```"
CALL = '```tool\n{"name": "units.convert", "arguments": {"value": 3, "to": "m"}}\n```'


def config(**agents: list[str]) -> ToolsConfig:
    return ToolsConfig.model_validate({"agents": agents, "servers": SERVERS})


def single(*tools: str) -> Team:
    team = load_team("single", "tools-1")
    return team_with_tools(
        team, agents_with_tools(team, config(solver=[*tools])), (CONVERT, SEARCH)
    )


def test_a_call_names_a_tool_and_its_arguments() -> None:
    asked = single("python", "mcp:units").code_in("solver", f"I convert it.\n{CALL}")
    assert isinstance(asked, ToolCall)
    assert (asked.tool, asked.arguments) == (CONVERT, {"value": 3, "to": "m"})
    assert json.loads(asked.text)["name"] == "units.convert"


@pytest.mark.parametrize(
    ("tools", "text", "kind"),
    [
        (("python", "mcp:units"), PROGRAM, str),
        (("python", "mcp:units"), f"{CALL}\n{PROGRAM}", str),
        (("python", "mcp:units"), f"{PROGRAM}\n{CALL}", ToolCall),
        (("mcp:units",), PROGRAM, type(None)),
        (("mcp:units",), f"{CALL}\n{PROGRAM}", ToolCall),
        (("mcp:units",), "Let me think.", type(None)),
        (("mcp:units",), f"<think>{CALL}</think>", type(None)),
        (("mcp:units",), CALL.removesuffix("```"), type(None)),
        (("mcp:units",), CALL + r" \boxed{41}", type(None)),
        (("mcp:web",), CALL, RefusedCall),
    ],
)
def test_the_last_complete_block_that_the_agent_may_use_counts(
    tools: tuple[str, ...], text: str, kind: type
) -> None:
    assert type(single(*tools).code_in("solver", text)) is kind


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not JSON", "Invalid JSON: "),
        ("[1]", "Input should be an object"),
        ('{"arguments": {}}', "name: Field required"),
        ('{"name": "units.convert", "arguments": [3]}', "arguments: Input should be "),
        ('{"name": "units.convert", "args": {}}', "args: Extra inputs are not permitted"),
        *(
            (
                f'{{"name": "units.convert", "arguments": {{"value": {number}, "to": "m"}}}}',
                "arguments: numbers have to be finite",
            )
            for number in ("1e999", "-Infinity", "NaN")
        ),
        ('{"name": "convert"}', "no tool is called 'convert'; there are: units.convert"),
        ('{"name": "units.convert"}', "arguments: 'value' is a required property"),
        (
            '{"name": "units.convert", "arguments": {"value": "three", "to": "m"}}',
            "arguments.value: 'three' is not of type 'number'",
        ),
        (
            '{"name": "units.convert", "arguments": {"value": 3, "to": "mile"}}',
            "arguments.to: 'mile' is not one of ['m', 'km']",
        ),
    ],
)
def test_what_is_wrong_with_a_call_is_said(text: str, reason: str) -> None:
    refused = read_call(text, (CONVERT,))
    assert isinstance(refused, RefusedCall)
    assert refused.text == text
    assert refused.reason.startswith(reason)


@given(st.text())
def test_no_text_is_an_error(text: str) -> None:
    for said in (text, json.dumps({"name": "units.convert", "arguments": {"value": text}})):
        assert isinstance(read_call(said, (CONVERT,)), RefusedCall)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"name": "\\ud800"}', '{"name": "\ud800"}'])
def test_hostile_json_is_refused(text: str) -> None:
    assert isinstance(read_call(text, (CONVERT,)), RefusedCall)


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "http://127.0.0.1:1/schema.json"}, {"$ref": "#"}],
)
def test_a_schema_that_cannot_be_used_is_the_servers_to_judge_by(schema: dict[str, Json]) -> None:
    unusable = replace(CONVERT, schema=schema)
    said = '{"name": "units.convert", "arguments": {"value": 3}}'
    assert isinstance(read_call(said, (unusable,)), ToolCall)


def test_the_prompt_lists_the_agents_tools_and_no_others() -> None:
    observation = single("python", "mcp:units").next_observation(
        make_episode(make_run(), make_problem("What is {{tools}}?"))
    )
    assert observation is not None
    assert describe_tools([CONVERT]) in observation.messages[0].content
    assert "- units.convert: Convert a length.\n" in observation.messages[0].content
    assert "web.search" not in str(observation)
    # Only the team's own words have placeholders.
    assert observation.messages[-1].content == "What is {{tools}}?"


def test_titles_that_repeat_names_are_left_out() -> None:
    schema = {"title": "T", "properties": {"title": {"title": "Title", "type": "string"}}}
    shown = describe_tools([replace(CONVERT, schema=schema)])
    assert shown.endswith('arguments: {"properties": {"title": {"type": "string"}}}')


@pytest.mark.parametrize(
    ("team", "prompts", "agents", "complaint"),
    [
        ("single", "tools-1", {"solvr": ["python"]}, "tools.agents.solvr: team single has solver"),
        ("single", "tools-1", {}, "prompts tools-1 list tools of servers, and solver has none"),
        ("single", "small-1", {"solver": ["mcp:units"]}, "prompts small-1 do not tell solver of"),
        (
            "single",
            "tools-1",
            {"solver": ["mcp:maps"]},
            "agent solver has mcp:maps, which is not configured: set tools.servers.maps.command",
        ),
        ("mathchat", "small-1", {"verifier": ["python"]}, "tools.agents.verifier: it has no turn"),
    ],
)
def test_tools_that_could_not_be_used_are_refused(
    team: str, prompts: str, agents: dict[str, list[str]], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        agents_with_tools(load_team(team, prompts), config(**agents))
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


def test_a_team_without_servers_is_as_it_was() -> None:
    team = load_team("single", "small-1")
    assert team_with_tools(team, agents_with_tools(team, ToolsConfig()), ()) is team


def test_python_can_be_taken_away() -> None:
    team = load_team("single", "small-1")
    without = team_with_tools(team, agents_with_tools(team, config(solver=[])), ())
    assert team.code_in("solver", PROGRAM) == "print(14 + 27)"
    assert without.code_in("solver", PROGRAM) is None


@pytest.mark.parametrize(
    "server",
    [
        {},
        {"command": ["units"], "url": "http://127.0.0.1:1"},
        {"command": ["units"], "token": "KEY"},
        {"url": "http://127.0.0.1:1", "environment": ["KEY"]},
        {"url": "http://name:password@127.0.0.1:1"},
        {"url": "ftp://127.0.0.1"},
    ],
)
def test_a_server_is_a_command_or_an_address_without_secrets(server: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"servers\.units"):
        ToolsConfig.model_validate({"servers": {"units": server}})
