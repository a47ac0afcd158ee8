"""Published problem files are fetched from folders, a hub's data sets and addresses, by hash."""

import functools
import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mappa_cli.main import app
from mappa_core.app.config_files import load_config
from mappa_core.core.errors import ConfigError, OutsideError
from mappa_core.rollout.config import ProblemsConfig
from mappa_core.rollout.problems.published import SHA256, address, fetch_problems

ROOT = Path(__file__).parents[4]
DATA = ROOT.parent / "shared" / "data"
here = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not here")
REVISION = "0123abc"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a data set's files on a hub of this machine."""
    folder = tmp_path / "hub" / "datasets" / "some" / "problems" / "resolve" / REVISION / "Bench"
    folder.mkdir(parents=True)
    handler = functools.partial(Quiet, directory=str(tmp_path / "hub"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder
        server.shutdown()
        thread.join()


def named(folder: Path, *names: str) -> ProblemsConfig:
    paths = [folder / name for name in names]
    return ProblemsConfig(source="json", train_files=(paths[0],), held_out_files=tuple(paths[1:]))


@here
@pytest.mark.parametrize("kind", ["folder", "hub"])
def test_files_come_from_a_folder_or_a_hub_and_stay(kind: str, tmp_path: Path, hub: Path) -> None:
    for name in ("amc.json", "aime_2025.json"):
        (hub / name).write_bytes((DATA / name).read_bytes())
    source = (
        f"file://{hub}" if kind == "folder" else f"hf://datasets/some/problems@{REVISION}/Bench"
    )
    config = named(tmp_path / "data", "amc.json", "aime_2025.json")
    found = fetch_problems(config, source)
    assert [each.path.name for each in found] == ["amc.json", "aime_2025.json"]
    assert all(each.source is not None for each in found)
    assert (tmp_path / "data" / "amc.json").read_bytes() == (DATA / "amc.json").read_bytes()
    # What is there is asked for nowhere.
    again = fetch_problems(config, "http://127.0.0.1:1")
    assert [each.source for each in again] == [None, None]


def test_other_bytes_are_never_kept(tmp_path: Path, hub: Path) -> None:
    (hub / "amc.json").write_text("[]")
    config = named(tmp_path / "data", "amc.json", "amc.json")
    source = f"hf://datasets/some/problems@{REVISION}/Bench"
    with pytest.raises(OutsideError, match=r"not the published file: its SHA-256 is .* nothing"):
        fetch_problems(config, source)
    assert not (tmp_path / "data").exists()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "amc.json").write_text("mine")
    with pytest.raises(ConfigError, match="is not the published file: move it away"):
        fetch_problems(config, source)
    assert (tmp_path / "data" / "amc.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("http://127.0.0.1:1", "cannot be had .*: look at the network"),
        ("file:///no/such", "cannot be had .*No such file"),
        (f"hf://datasets/some/problems@{REVISION}/Bench", "cannot be had .*404"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_source_that_does_not_answer_is_one_line(source: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OutsideError) as refused:
        fetch_problems(named(tmp_path / "data", "amc.json", "amc.json"), source)
    assert re.search(said, str(refused.value))
    assert "\n" not in str(refused.value)


def test_what_is_not_published_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mine\.json: not a published file; there are AIME_"):
        fetch_problems(named(tmp_path, "mine.json", "amc.json"))
    with pytest.raises(ConfigError, match="names no files"):
        fetch_problems(ProblemsConfig())
    for wrong in ("amc", "s3://bucket", "hf://datasets/no-revision/here"):
        with pytest.raises(ConfigError, match="is no address"):
            address(wrong)


def test_a_data_set_is_asked_for_at_its_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert address("hf://datasets/some/problems@v1") == (
        "https://huggingface.co/datasets/some/problems/resolve/v1"
    )


@here
def test_the_hashes_are_those_of_the_published_files() -> None:
    digest = {name: hashlib.sha256((DATA / name).read_bytes()).hexdigest() for name in SHA256}
    assert digest == SHA256


@pytest.mark.parametrize("preset", ["mathchat", "mathchat_paper", "dsbench_paper"])
def test_every_file_that_a_preset_names_is_published(preset: str) -> None:
    problems = load_config(ROOT / "configs" / f"{preset}.yaml").problems
    paths = [*problems.train_files, *problems.held_out_files]
    paths += [problems.prompts_file] if problems.prompts_file else []
    assert {path.name for path in paths} <= SHA256.keys()


@here
def test_the_command_says_what_it_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    preset = str(ROOT / "configs" / "dsbench_paper.yaml")
    done = CliRunner().invoke(
        app, ["problems", "fetch", "--config", preset, "--from", f"file://{DATA}"]
    )
    assert done.exit_code == 0, done.output
    assert "data/dsbench_modeling_train.json: from file:///" in done.output
    assert "DSBench's CSV files belong here" in done.output
    assert (tmp_path / "data" / "dsbench_modeling_cleaned_prompts.json").exists()
