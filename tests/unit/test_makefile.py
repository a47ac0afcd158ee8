"""`make` itself, with a stand-in for the Python of its environment that says what it is asked."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAYS = """#!/bin/sh
echo "NAME: $*"
exit "${ENDS_WITH:-0}"
"""
LOCKED = ("--no-deps -r requirements/cpu.lock", "--no-deps --no-build-isolation -e .")


@pytest.mark.parametrize("ends_with", [0, 3])
def test_the_nightly_target_runs_the_slow_tests_and_ends_as_they_do(
    tmp_path: Path, ends_with: int
) -> None:
    put_program(tmp_path / "bin" / "python")
    # As after an installation: each newer than what it is made of.
    (tmp_path / ".cpu").touch()
    (tmp_path / ".dev").touch()
    done = make("test-nightly", f"VENV={tmp_path}", "TESTS=tests/e2e", ENDS_WITH=str(ends_with))
    assert (done.returncode == 0) is (ends_with == 0), done.stderr
    assert "python: -m pytest -m slow " in done.stdout
    assert "tests/e2e\n" in done.stdout
    assert "nightly: tests/e2e took 0 min" in done.stdout


def test_the_nightly_script_calls_the_target() -> None:
    last = (ROOT / ".ci" / "nightly").read_text().splitlines()[-1]
    assert last == 'make PYTHON="$PYTHON" test-nightly'


def test_packages_are_installed_by_pip_and_compiled_together(tmp_path: Path) -> None:
    put_program(tmp_path / "bin" / "python")
    *installs, compiled = asked(make("setup", f"VENV={tmp_path}"))
    by = "python: -m pip --disable-pip-version-check -qq install --no-compile "
    assert [each.removeprefix(by) for each in installs] == [torch(), *LOCKED]
    assert compiled == f"python: -m compileall -qq -j 0 {tmp_path}/lib"
    assert (tmp_path / ".cpu").exists()


def test_packages_are_installed_by_uv_where_it_is_named(tmp_path: Path) -> None:
    python = put_program(tmp_path / "bin" / "python")
    uv = put_program(tmp_path / "uv")
    *installs, compiled = asked(make("setup", f"VENV={tmp_path}", f"UV={uv}"))
    by = f"uv: pip install --quiet --python {python} "
    assert [each.removeprefix(by) for each in installs] == [torch(), *LOCKED]
    assert compiled.startswith("python: -m compileall ")


@pytest.mark.parametrize("by_uv", [False, True])
def test_an_installation_that_fails_is_not_taken_for_one(tmp_path: Path, *, by_uv: bool) -> None:
    put_program(tmp_path / "bin" / "python")
    uv = f"UV={put_program(tmp_path / 'uv')}" if by_uv else "UV="
    done = make("setup", f"VENV={tmp_path}", uv, ENDS_WITH="1")
    assert done.returncode != 0
    assert len(asked(done)) == 1
    assert not (tmp_path / ".cpu").exists()


def test_plain_make_says_what_there_is_and_nothing_else() -> None:
    said = make().stdout.splitlines()
    assert any(line.startswith("make train ") for line in said)
    assert all(line.startswith("make ") for line in said)


def put_program(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(SAYS.replace("NAME", path.name))
    path.chmod(0o755)
    return path


def make(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # What `make test` was called with is not for these.
    ours = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "UV")}
    return subprocess.run(
        ("make", "--no-print-directory", *words),
        cwd=ROOT,
        env=ours | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def asked(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith(("python: ", "uv: "))]


def torch() -> str:
    lock = (ROOT / "requirements" / "cpu.lock").read_text().splitlines()
    return next(line for line in lock if line.startswith("torch=="))
