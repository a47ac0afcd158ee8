"""The prompt format is strict: a slip in a file is one line that names the file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.core.errors import ConfigError
from mappa_core.core.records.episodes import Message
from mappa_core.rollout.teams.prompts import Prompt, fill, load_prompts, parse_prompt

HEAD = "---\nversion: 3\noutput_chars: 160\n---\n"
SEES = ("problem", "executor.output")


def parsed(text: str) -> Prompt:
    return parse_prompt(text, agent="executor", sees=SEES, source="executor.md")


def test_a_whole_file() -> None:
    prompt = parsed(
        f"{HEAD}[system]\nBe brief.\n[user]\n1 + 1?\n[assistant]\n2\n\n"
        "[template]\n{{problem}}\nWell?\n[feedback]\nOutput: {{executor.output}}\n"
    )
    assert prompt == Prompt(
        version=3,
        output_chars=160,
        opening=(
            Message(role="system", content="Be brief."),
            Message(role="user", content="1 + 1?"),
            Message(role="assistant", content="2"),
        ),
        template="{{problem}}\nWell?",
        feedback="Output: {{executor.output}}",
    )


def test_only_the_template_is_required() -> None:
    prompt = parsed(f"{HEAD}[template]\n{{{{problem}}}}")
    assert (prompt.opening, prompt.feedback) == ((), None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "must begin with ---"),
        ("[template]\nx", "must begin with ---"),
        (HEAD.replace("3", "0") + "[template]\nx", "must begin with ---"),
        (HEAD.replace("version: 3\n", "") + "[template]\nx", "must begin with ---"),
        (HEAD.replace("160", "-1") + "[template]\nx", "must begin with ---"),
        (HEAD, "has sections none"),
        (HEAD + "x\n[template]\nx", "text before its first [section]"),
        (HEAD + "[system]\nx", "has sections system:"),
        (HEAD + "[template]\nx\n[system]\nx", "has sections template, system:"),
        (HEAD + "[user]\nx\n[template]\nx", "has sections user, template:"),
        (HEAD + "[template]\nx\n[template]\nx", "has sections template, template:"),
        (HEAD + "[tmplate]\nx", "has sections tmplate:"),
        (HEAD + "[template]\n\n", "an empty section [template]"),
        (HEAD + "[system]\n \n[template]\nx", "an empty section [system]"),
        (HEAD + "[template]\n{{answer}}", "[template], uses {{answer}}"),
        (HEAD + "[template]\n{{ problem }}", "[template], uses {{ problem }}"),
        (HEAD + "[system]\n{{problem}}\n[template]\nx", "[system], uses {{problem}}"),
        # What its program wrote is not known before the first turn.
        (HEAD + "[template]\n{{executor.output}}", "[template], uses {{executor.output}}"),
    ],
)
def test_a_slip_is_one_line_that_names_the_file(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    message = str(caught.value)
    assert message.startswith("executor.md")
    assert complaint in message
    assert "\n" not in message


@given(st.text(), st.text())
def test_values_go_in_once_and_as_they_are(problem: str, output: str) -> None:
    filled = fill("{{a}}|{{b.c}}|{{a}}", {"a": problem, "b.c": output})
    assert filled == f"{problem}|{output}|{problem}"


@given(st.text(max_size=80))
def test_any_file_is_parsed_or_refused_with_a_config_error(body: str) -> None:
    try:
        prompt = parsed(f"{HEAD}[template]\n{body}")
    except ConfigError:
        return
    assert prompt.template.strip()


def own_set(root: Path, name: str, content: bytes) -> str:
    """A prompt set of one agent in a folder of its own; returns the team, as a path."""
    folder = root / name
    folder.mkdir()
    (folder / "executor.md").write_bytes(content)
    return str(root)


def test_a_set_of_ones_own_loads_and_its_hash_follows_every_word(tmp_path: Path) -> None:
    sees = {"executor": SEES}
    team = own_set(tmp_path, "mine-3", f"{HEAD}[template]\nx".encode())
    first = load_prompts(team, "mine-3", sees)
    assert (first.name, first.version, first.prompts["executor"].template) == ("mine-3", 3, "x")
    (tmp_path / "mine-3" / "executor.md").write_text(f"{HEAD}[template]\ny", encoding="utf-8")
    assert load_prompts(team, "mine-3", sees).sha256 != first.sha256


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("mine-4", f"{HEAD}[template]\nx".encode(), "mine-4/executor.md says version 3: a changed"),
        ("mine", f"{HEAD}[template]\nx".encode(), "prompt set 'mine' must end with its version"),
        ("mine-3", b"\xff\xfe", "mine-3/executor.md is not UTF-8 text: save it as UTF-8"),
    ],
)
def test_a_set_that_does_not_fit_is_refused(
    tmp_path: Path, name: str, content: bytes, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_prompts(own_set(tmp_path, name, content), name, {"executor": SEES})


def test_a_set_without_a_file_for_an_agent_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^prompt set small-1 lacks stranger\.md: add the file$"):
        load_prompts("mathchat", "small-1", {"stranger": ()})
