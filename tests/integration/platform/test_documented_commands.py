"""Every command line of the documentation is run here, or has its reason, and what runs instead."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mappa_cli.benches.episodes import Material
from mappa_core.store.store import Store
from tests.integration.platform.conftest import Mappa
from tests.integration.platform.deployed import Platform
from tests.unit.test_docs import BLOCKS, ROOT, command_lines, commands


class Reason(NamedTuple):
    """Why a command is not run here, and what runs in its place: words of that file."""

    why: str
    place: str = ""
    """Empty: nothing does."""
    words: str = ""


COACHED, DEPLOYED = "tests/integration/coach/test_commands.py", "tests/integration/platform/"
AUDITED, SERVED = "tests/integration/audit/", "tests/integration/tracking/test_served.py"
NOT_RUN = {
    r"make train|mappa train (?!.*--dry-run)": Reason(
        "trains for minutes", "tests/e2e/test_real_run.py", 'run.mappa("train"'
    ),
    r"make test$": Reason("takes an hour", ".ci/run", 'make PYTHON="$PYTHON" test\n'),
    r"make coach-model": Reason("fetches a gigabyte", ".ci/nightly", "coach-model"),
    r"make up": Reason(
        "needs a Docker Engine",
        "tests/integration/cli/servers/test_stack.py",
        'docker_compose("up", "--detach"',
    ),
    r"mappa evaluate": Reason(
        "plays with a model", "tests/e2e/test_competition_run.py", '"evaluate"'
    ),
    r"mappa rescore": Reason("asks a coach", COACHED, '"rescore", "quickstart-1"'),
    r"mappa audit .*--experiment": Reason(
        "asks a coach", AUDITED + "test_experiment.py", 'mappa("--experiment"'
    ),
    r"mappa audit .*--before": Reason("asks a coach", COACHED, '"audit", "--before"'),
    r"mappa audit .*--against": Reason(
        "asks a coach", COACHED, '"audit", "quickstart-1", "--against"'
    ),
    r"mappa audit --self-test": Reason(
        "takes minutes", AUDITED + "test_command.py", 'mappa("--self-test"'
    ),
    r"mappa audit RUN --debias": Reason(
        "refuses where no bias is proven", AUDITED + "test_command.py", 'mappa(RUN, "--debias"'
    ),
    r"mappa label": Reason("asks a person", AUDITED + "test_label.py", 'mappa("label"'),
    r"mappa promote --rollback": Reason(
        "needs two champions", DEPLOYED + "test_promotion.py", "roll_back("
    ),
    r"mappa promote RUN": Reason(
        "needs a registered model", DEPLOYED + "test_deployed.py", 'platform.mappa("promote"'
    ),
    r"mappa serve": Reason(
        "stays until it is stopped",
        "tests/integration/cli/servers/test_servers.py",
        "mlflow_server(",
    ),
    r"mappa db restore": Reason(
        "wants an empty home", "tests/integration/store/test_backup.py", "backup.restore("
    ),
    r"mappa bench": Reason("takes minutes"),
    r"docker build": Reason("needs a registry of images"),
    r"python infra/sandbox": Reason(
        "needs a Docker Engine", ".ci/sandboxes", "infra/sandbox/from_host.py"
    ),
    r"docker import": Reason("needs a Docker Engine", ".ci/sandboxes", "docker import --change"),
    r"export": Reason("sets a variable", "tests/unit/test_docs.py", '"export": check_variables'),
    r"python -m mappa_cli.provider_stub": Reason(
        "stays until it is stopped", COACHED, '"mappa_cli.provider_stub", "--latency"'
    ),
    r"prefect worker": Reason(
        "stays until it is stopped", DEPLOYED + "deployed.py", '"worker", "start", "--pool"'
    ),
    r"prefect flow-run": Reason(
        "needs a run that failed", DEPLOYED + "test_deployed.py", '"flow-run", "retry"'
    ),
    r"psql": Reason("is another's program"),
    r"mlflow": Reason("needs a champion", SERVED, '"mlflow", "artifacts", "download"'),
    r"vllm": Reason("needs a champion", SERVED, '"serve", *arguments'),
}
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


HERE = [(page, command) for page, command in documented() if not any(reasons(command))]
ON_PREFECT = [command for _, command in HERE if command.startswith("prefect ")]
RUNS = [(page, command) for page, command in HERE if command not in ON_PREFECT]


def letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text)


def test_no_reason_is_left_of_a_command_that_is_gone() -> None:
    used = {pattern for _, command in documented() for pattern in reasons(command)}
    assert used == set(NOT_RUN)
    # Most of what is left out is what a reader does first; what only reads must not join it.
    assert len(RUNS) >= 20
    assert len(ON_PREFECT) >= 9


@pytest.mark.parametrize("command", [each for _, each in documented() if any(reasons(each))])
def test_what_runs_in_a_commands_place_has_its_words(command: str) -> None:
    (pattern,) = reasons(command)
    reason = NOT_RUN[pattern]
    if reason.place:
        assert reason.words in (ROOT / reason.place).read_text()
        words = {word for word in map(letters, shlex.split(command)) if len(word) > 1} - {"mappa"}
        assert any(word in letters(reason.words) for word in words)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_said_of_prefect_works_on_a_new_server(server: Platform) -> None:
    for command in ON_PREFECT:
        server.done(*shlex.split(command.replace(" --no-prompt", ""))[1:])


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
