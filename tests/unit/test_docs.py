"""Every block of code in the documentation is run, parsed by who will read it, or checked."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
from pydantic import AliasChoices
from typer.core import TyperGroup
from typer.main import get_command

from mappa_cli.benches.quickstart import read_result
from mappa_cli.main import app
from mappa_core.app.config import TrainConfig
from mappa_core.app.config_files import load_config
from mappa_core.coach.config import RULE
from mappa_core.coach.provider_table import PROVIDERS
from mappa_core.core.heap import TUNABLES
from mappa_core.core.records.tools import Tool, ToolCall
from mappa_core.core.settings import Settings
from mappa_core.rollout.tools.calls import read_call

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)(#[^)]*)?\)")
PICTURES = ("", "text")
"""Languages that nobody runs."""


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    content: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks() -> Iterator[Block]:
    for page in DOCS:
        text = page.read_text()
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(page=page, line=line, language=found[2], content=found[3])


BLOCKS = tuple(blocks())


def of(*languages: str) -> pytest.MarkDecorator:
    found = [block for block in BLOCKS if block.language in languages]
    assert found
    return pytest.mark.parametrize("block", found, ids=str)


def test_every_language_is_checked_somewhere() -> None:
    # SQL is asked of a real store in tests/integration/store/test_views.py.
    known = {*PICTURES, "sh", "console", "python", "yaml", "sql"}
    assert {block.language for block in BLOCKS} <= known
    # An indented block would escape; a table or a list may be indented by less.
    for page in DOCS:
        outside = FENCE.sub("", page.read_text())
        assert not re.search(r"^    (?:mappa|make|psql|docker|python) ", outside, re.MULTILINE), (
            page
        )


@of("sh", "console")
def test_a_command_line_is_one_that_its_program_takes(
    block: Block, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for line in command_lines(block.content):
        for words in commands(line):
            check_command(words)


def command_lines(content: str) -> Iterator[str]:
    joined = content.replace("\\\n", " ")
    for line in joined.splitlines():
        if line := line.removeprefix("$ ").strip():
            yield line


def commands(line: str) -> Iterator[list[str]]:
    """The commands of a line, those inside `$(...)` first."""
    for inner in re.findall(r"\$\(([^()]*)\)", line):
        yield from commands(inner)
    words = shlex.split(re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line), comments=True)
    while "|" in words:
        at = words.index("|")
        yield words[:at]
        words = words[at + 1 :]
    yield words


def check_command(words: Sequence[str]) -> None:
    words = [*words]
    while words and re.match(r"[A-Z_]+=", words[0]):
        check_variables(words[:1])
        words = words[1:]
    if words:
        program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
        assert program in CHECKS, f"{program} is neither ours nor known"
        CHECKS[program](arguments)


def check_variables(assignments: Sequence[str]) -> None:
    ours = {
        str(name)
        for field in Settings.model_fields.values()
        for name in (
            field.validation_alias.choices
            if isinstance(field.validation_alias, AliasChoices)
            else (field.validation_alias,)
        )
    }
    keys = {row.needs for row in PROVIDERS.values()}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        assert name in {*ours, *keys, "PATH", *TUNABLES}
        assert TUNABLES.get(name, value) == value


def check_make(targets: Sequence[str]) -> None:
    for target in targets:
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def check_python(arguments: Sequence[str]) -> None:
    first, *others = arguments
    assert find_spec(others[0]) if first == "-m" else (ROOT / first).exists()


def check_pip(arguments: Sequence[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (extra,) = re.findall(r"mappa\[(\w+)\]", " ".join(arguments))
    assert extra in project["optional-dependencies"]


def check_mappa(arguments: Sequence[str]) -> None:
    command, words = get_command(app), [*arguments]
    while isinstance(command, TyperGroup):
        assert words, "a group of commands does nothing by itself"
        command = command.commands[words.pop(0)]
    context = command.make_context(command.name, words)
    if overrides := context.params.get("overrides"):
        load_config(context.params.get("config"), overrides)


CHECKS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "mappa": check_mappa,
    "make": check_make,
    "export": check_variables,
    "python": check_python,
    "pip": check_pip,
    # Their command lines are their own business.
    **dict.fromkeys(
        ("docker", "docker-compose", "prefect", "psql", "cp", "mlflow", "vllm"), lambda _: None
    ),
}


@of("python")
def test_python_runs_after_the_blocks_before_it(block: Block) -> None:
    before = [
        each
        for each in BLOCKS
        if each.page == block.page and each.language == "python" and each.line <= block.line
    ]
    names: dict[str, object] = {"__name__": "docs"}
    for each in before:
        # Lines as in the page, so that a failure names the right one.
        source = "\n" * each.line + each.content
        exec(compile(source, str(each.page), "exec"), names)


@of("yaml")
def test_yaml_is_a_configuration(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(block.content)
    assert load_config(file) != TrainConfig()


def test_the_call_that_is_shown_is_one() -> None:
    page = (ROOT / "docs" / "tools.md").read_text()
    (content,) = re.findall(r"^```tool\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    said = json.loads(content)
    server, _, name = said["name"].partition(".")
    tool = Tool(server=server, name=name, description="", schema={"type": "object"})
    assert isinstance(read_call(content, (tool,)), ToolCall)


@pytest.mark.parametrize("page", [*DOCS, ROOT / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        file = (page.parent / target).resolve()
        assert file.exists(), target
        if anchor:
            assert anchor[1:] in anchors(file), anchor


PLACE = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9]*(?:\.py)?)`")
"""A file of the code, or a folder with its slash; names of deployments have none."""


@pytest.mark.parametrize("page", [*DOCS, ROOT / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_places_in_the_code_are_there(page: Path) -> None:
    rooms = (ROOT, ROOT / "mappa_core", ROOT / "mappa_core/rollout")
    for place in PLACE.findall(page.read_text()):
        if place.endswith((".py", "/")) and not place.startswith("rows/"):
            assert any((room / place).exists() for room in rooms), place


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w -]", "", heading).strip().lower() for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_the_readmes_picture_is_of_a_stored_run() -> None:
    drawing = SimpleNamespace(**run_path(str(ROOT / "docs" / "picture.py")))
    first, *_ = read_result(ROOT / "docs" / "quickstart.json").results
    page = (ROOT / "README.md").read_text()
    assert f"![{drawing.description(first)}](docs/quickstart.svg)" in page
    assert (ROOT / "docs" / "quickstart.svg").read_text() == drawing.picture(first)


@pytest.mark.parametrize("preset", ["quickstart", "quickstart_llm_coach"])
def test_the_readmes_figures_are_those_of_the_stored_runs(preset: str) -> None:
    drawing = SimpleNamespace(**run_path(str(ROOT / "docs" / "picture.py")))
    stored = read_result(ROOT / "docs" / f"{preset}.json")
    assert stored.preset == preset
    assert [one.seed for one in stored.results] == [1, 2, 3]
    assert f"\n\n{drawing.seeds_table(stored)}\n\n" in (ROOT / "README.md").read_text()
    # A run of another preset proves nothing about this one.
    config = load_config(ROOT / "configs" / f"{preset}.yaml")
    played = TrainConfig.model_validate(stored.settings)
    assert played.same_experiment(config) == ()
    for one in stored.results:
        assert (one.coach is None) == (config.coach.backend == RULE)
        assert one.held_out.problems == config.problems.held_out_size
        assert one.held_out.episodes == config.problems.held_out_size * config.evaluation.samples
        trained = [line for line in one.iterations if line.phase == "train"]
        assert len(trained) == config.rollout.iterations


def test_what_is_said_of_the_presets_coach_is_of_the_stored_runs() -> None:
    drawing = SimpleNamespace(**run_path(str(ROOT / "docs" / "picture.py")))
    stored = read_result(ROOT / "docs" / "quickstart_llm_coach.json")
    for one in stored.results:
        assert one.coach is not None
        assert one.coach.exam is not None
        assert one.coach.audit is not None
    page = (ROOT / "docs" / "audit.md").read_text()
    rows = drawing.exam_rows(stored)
    assert f"\n{rows}\n" in page
    assert page.count(drawing.LLM_COACH) == len(rows.splitlines())
    assert f"\n\n{drawing.coach_table(stored)}\n\n" in page
    assert f" {drawing.speeds(stored)} over" in (ROOT / "docs" / "coach.md").read_text()


def test_the_index_links_every_page() -> None:
    linked = {target for target, _ in LINK.findall((ROOT / "docs" / "README.md").read_text())}
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == linked


def test_the_readme_is_for_a_first_visit() -> None:
    page = (ROOT / "README.md").read_text()
    (read_on,) = re.findall(r"^## Read on\n(.*)", page, re.DOTALL | re.MULTILINE)
    assert len(LINK.findall(read_on)) == 5
