"""Bad input is one line and an exit code, before anything is written."""

import subprocess
import sys
from pathlib import Path

import pytest

from mappa_cli.main import main
from mappa_core.app.fitting import check_space
from mappa_core.core.errors import DiskFull


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("MAPPA_HOME", str(home))
    monkeypatch.delenv("MAPPA_DATABASE_URL", raising=False)
    return home


def failing(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int | str | None, str]:
    monkeypatch.setattr(sys, "argv", ["mappa", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "rollout.iteratons=3"], "did you mean rollout.iterations?"),
        (["train", "learner.learning_rate=-1"], "learner.learning_rate=-1"),
        (["train", "nonsense"], "key=value"),
        (["train", "--config", "no-such.yaml"], "no-such.yaml"),
        (["train", "team=mathcat"], "mathchat"),
        (["train", "model=./no-such-model"], "no-such-model"),
        (["train", "problems.source=json"], "problems.train_files"),
        (["train", "problems.train_size=8"], "lower rollout.problems"),
        (["train", "--resume", "x", "seed=2"], "leave out"),
        (["train", "--resume", "x", "--fork", "y"], "take one"),
        (["train", "--step", "2"], "--step needs --fork"),
        (["train", "coach.visibility.verifer=full"], "team mathchat has verifier"),
        (["train", "rollout.agent_tokens.verifer=9"], "agent_tokens.verifer: team mathchat has"),
        (["train", "audit.stop_on=[coach]", "audit.anchors=0"], "nothing is watched"),
        (["bench", "nothing"], "rollout"),
        (["audit", "run", "--margin", "nan"], "--margin is above 0 points"),
        (["audit", "run", "--margin", "inf"], "--margin is above 0 points"),
        (["audit", "run", "--set", "coach.temperature=0"], "--set needs --before or --against"),
        (["audit", "run", "--config", "configs/quickstart.yaml"], "--config needs --before"),
        (["audit", "run", "--rubric", "r"], "--rubric needs --against"),
        (["audit", "run", "--champ", "v0.json"], "--champ needs --before"),
        (["train", "--yes", "--dry-run"], "--yes is for a new run"),
        (["audit", "run", "--against", "rule", "--debias"], "--debias needs a RUN alone"),
        (["audit", "--before", "--report", "page.html"], "--report needs a RUN alone"),
        (["audit", "run", "--report", "no/such/page.html"], "no folder no/such"),
        (["audit", "--self-test", "--simulations", "0"], "at least one"),
        (["report", "run", "--to", "no/such/page.html"], "no folder no/such"),
        (["report", "run", "--to", "."], "is a folder"),
        (["promote"], "say what to promote"),
        (["promote", "run", "--list"], "say what to promote"),
        (["promote", "run", "--override", " "], "needs a reason"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_nothing_is_written(
    arguments: list[str],
    said: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, error = failing(arguments, monkeypatch, capsys)
    assert code == 2
    assert error.startswith("mappa: ")
    assert said in error
    assert error.count("\n") == 1
    assert not home.exists()


def test_an_unreachable_database_is_one_line_and_exit_code_1(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MAPPA_DATABASE_URL", "postgresql://someone:secret@127.0.0.1:9/none")
    code, error = failing(["runs"], monkeypatch, capsys)
    assert code == 1
    assert error.startswith("mappa: ")
    assert error.count("\n") == 1
    assert "secret" not in error


def test_a_nearly_full_disk_is_refused_before_a_run(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="MAPPA_HOME"):
        check_space(tmp_path / "not" / "yet", spare_bytes=2**60)


def test_a_dry_run_prints_the_resolved_configuration(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mappa", "train", "--dry-run", "seed=7"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert "seed: 7" in capsys.readouterr().out
    assert not home.exists()


def test_what_takes_long_to_import_waits_for_the_command_that_needs_it() -> None:
    program = (
        "import sys, mappa_cli.main; "
        "print({'torch', 'prefect', 'mlflow', 'sqlalchemy', 'numpy', 'google'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("set()\n", "")
