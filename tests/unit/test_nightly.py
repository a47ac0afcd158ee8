"""`make test-nightly` takes the slow tests, says how long they took, and fails where they do."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNER = """#!/bin/sh
echo "asked: $*"
exit "$ENDS_WITH"
"""


@pytest.mark.parametrize("ends_with", [0, 3])
def test_the_nightly_target_runs_the_slow_tests_and_ends_as_they_do(
    tmp_path: Path, ends_with: int
) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(RUNNER)
    python.chmod(0o755)
    # As after an installation: each newer than what it is made of.
    (tmp_path / ".cpu").touch()
    (tmp_path / ".dev").touch()
    done = subprocess.run(
        ("make", "test-nightly", f"VENV={tmp_path}", "TESTS=tests/e2e"),
        cwd=ROOT,
        env={**os.environ, "ENDS_WITH": str(ends_with)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) is (ends_with == 0), done.stderr
    assert "asked: -m pytest -m slow " in done.stdout
    assert "tests/e2e\n" in done.stdout
    assert "nightly: tests/e2e took 0 min" in done.stdout


def test_the_nightly_script_calls_the_target() -> None:
    last = (ROOT / ".ci" / "nightly").read_text().splitlines()[-1]
    assert last == 'make PYTHON="$PYTHON" test-nightly'
