"""Every command line of the documentation is run on a stored run, or has its reason here."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mappa_cli.benches.episodes import Material
from mappa_core.store.store import Store
from tests.integration.platform.conftest import Mappa
from tests.unit.test_docs import BLOCKS, ROOT, command_lines, commands

NOT_RUN = {
    r"make train|mappa train (?!.*--dry-run)": "trains for minutes: tests/e2e",
    r"mappa evaluate": "plays with a model: tests/e2e/test_evaluate.py",
    r"mappa rescore|mappa audit .*--(experiment|before|against)": "asks a coach: "
    "tests/integration/coach and tests/integration/audit",
    r"mappa audit --self-test": "takes minutes: tests/unit/audit/statistics",
    r"mappa label": "asks a person: tests/integration/audit/test_label.py",
    r"mappa promote": "needs a registered model: tests/integration/platform/test_promotion.py",
    r"mappa audit RUN --debias": "refuses where no bias is proven: "
    "tests/integration/audit/test_command.py",
    r"mappa serve": "stays until it is stopped: tests/integration/cli/servers/test_servers.py",
    r"mappa db restore": "wants an empty home: tests/integration/store/test_backup.py",
    r"mappa bench|make test": "takes minutes",
    r"mappa doctor$": "looks at all of the machine: tests/unit/cli",
    r"make coach-model": "fetches a gigabyte",
    r"make up|docker|python infra/sandbox": "needs a Docker Engine: -m stack",
    r"export": "sets a variable: tests/unit/test_docs.py",
    r"python -m mappa_cli.provider_stub|prefect worker": "stays until it is stopped",
    r"prefect": "needs a server of yours: tests/unit/flows/test_deployments.py",
    r"psql|vllm|mlflow": "is another's program",
}
"""Why a command is not run, by what it begins with, and what runs in its place."""
NAME = "quickstart-20261121-101500"
"""A run that the documentation names."""
EPISODES = 24


def documented() -> list[tuple[Path, str]]:
    """Each command of the shell blocks once, with the page that it is on first."""
    found: dict[str, Path] = {}
    for block in BLOCKS:
        if block.language in ("sh", "console"):
            for line in command_lines(block.content):
                for words in commands(line):
                    found.setdefault(shlex.join(words).replace(".venv/bin/", ""), block.page)
    return [(page, command) for command, page in found.items()]


def reasons(command: str) -> Iterator[str]:
    plain = re.sub(r"^([A-Z_]+=\S+ )+", "", command)
    return (pattern for pattern in NOT_RUN if re.match(pattern, plain))


RUNS = [(page, command) for page, command in documented() if not any(reasons(command))]


def test_no_reason_is_left_of_a_command_that_is_gone() -> None:
    used = {pattern for _, command in documented() for pattern in reasons(command)}
    assert used == set(NOT_RUN)
    for reason in NOT_RUN.values():
        for place in re.findall(r"tests/[\w/.]+", reason):
            assert (ROOT / place).exists(), place
    # Most of what is left out is what a reader does first; what only reads must not join it.
    assert len(RUNS) >= 18


@pytest.fixture(scope="module")
def material() -> Material:
    return Material()


@pytest.fixture
def home(store: Store, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a reader's checkout, with one stored run and the tutorial's `mine.yaml`."""
    run = material.open_run(store, NAME)
    store.episodes.add_episodes(*material.episodes(run, 0, EPISODES))
    for name in ("configs", "infra"):
        (tmp_path / name).symlink_to(ROOT / name)
    (mine,) = [each for each in BLOCKS if (each.page.name, each.language) == MINE]
    (tmp_path / "mine.yaml").write_text(mine.content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


MINE = ("tutorial.md", "yaml")


@pytest.mark.parametrize(("page", "command"), RUNS, ids=[command for _, command in RUNS])
def test_a_documented_command_does_what_it_says(
    page: Path,
    command: str,
    home: Path,
    store: Store,
    database_url: str,
    mappa: Mappa,
) -> None:
    episode = store.episodes.list_episodes(store.runs.get_run(NAME).id)[0].id
    known = {"RUN": NAME, "EPISODE": str(episode)[:13], "URL": database_url}
    program, *arguments = [known.get(word, word) for word in shlex.split(command)]
    if program == "cp":
        shutil.copy(*arguments)
        return
    assert program == "mappa", f"{page.name}: {command} is neither run nor has a reason"
    if arguments[:2] == ["db", "import"]:
        mappa("export", NAME, "--to", "jsonl", "--out", arguments[2])
    code, _, said = mappa(*arguments)
    # An audit's exit code is its verdict.
    assert code in ((0, 3) if arguments[0] == "audit" else (0,)), said
