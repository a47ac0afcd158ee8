"""The command line on a database of the test's own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import main

Mappa = Callable[..., tuple[int | str | None, str, str]]


@pytest.fixture
def mappa(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Mappa:
    """Run `mappa ARGUMENTS`; returns exit code, stdout and stderr."""
    monkeypatch.setenv("MAPPA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MAPPA_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int | str | None, str, str]:
        monkeypatch.setattr(sys, "argv", ["mappa", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return call
