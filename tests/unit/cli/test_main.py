"""Bad input is one line and an exit code, before anything is written."""

import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

from mappa_cli.main import main
from mappa_core.app.fitting import check_space
from mappa_core.core.errors import DiskFull

SIZES = """{
    "num_hidden_layers": 30, "hidden_size": 576, "num_attention_heads": 9,
    "tie_word_embeddings": true,
    "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152
}"""


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
        (["coach-model", "llama"], "llama: there are qwen2.5-coder-1.5b-instruct, qwen2.5-coder-0"),
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
        (["promote", "run", "--waive", "biased"], "cannot-tell may be waived"),
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


@pytest.mark.parametrize(
    ("refusal", "given"),
    [
        # A sequence of a million tokens, whose activations no machine of these tests has.
        ("memory", ("engine.max_model_length=1048576", "engine.kv_cache_gib=50")),
        ("disk", ("rollout.iterations=10000000",)),
    ],
)
def test_what_does_not_fit_is_refused_until_it_is_overruled_by_name(
    refusal: str,
    given: tuple[str, ...],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # A model that has a shape, and no weights: what is looked for next.
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(SIZES)
    arguments = ["train", *given, f"model={folder}", "engine.device=cpu", "learner.device=cpu"]
    code, error = failing(arguments, monkeypatch, capsys)
    assert (code, f"--despite {refusal}" in error) == (2 if refusal == "memory" else 1, True)
    _, error = failing([*arguments, "--despite", refusal], monkeypatch, capsys)
    assert "--despite" not in error
    assert str(folder) in error
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


def test_a_command_s_process_ends_in_order_and_takes_nothing_apart() -> None:
    program = """if True:
        import atexit, sys, threading, time
        from mappa_cli.main import command
        class Large:
            def __del__(self):
                print("taken apart")
        large = Large()
        large.itself = large
        def late():
            time.sleep(0.2)
            print("its thread")
        threading.Thread(target=late).start()
        atexit.register(print, "at exit")
        sys.argv = ["mappa", "train", *sys.argv[1:]]
        command()
    """
    for override, code in (("--dry-run", 0), ("nonsense", 2)):
        ran = subprocess.run(
            [sys.executable, "-c", program, override], capture_output=True, text=True, check=False
        )
        assert ran.returncode == code
        assert ran.stdout.splitlines()[-2:] == ["its thread", "at exit"]
        assert ran.stderr.startswith("mappa: ") == bool(code)


def test_the_module_runs_without_its_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["mappa", "--help"])
    with pytest.raises(SystemExit) as left:
        run_path(str(sys.modules[main.__module__].__file__), run_name="__main__")
    assert left.value.code == 0
    assert "train" in capsys.readouterr().out


def test_what_takes_long_to_import_waits_for_the_command_that_needs_it() -> None:
    program = (
        "import sys, mappa_cli.main; "
        "print({'torch', 'prefect', 'mlflow', 'sqlalchemy', 'numpy', 'google'} & set(sys.modules))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ran.stdout, ran.stderr) == ("set()\n", "")
