"""Where things are does not depend on the folder somebody stands in."""

from pathlib import Path

import pytest

from mappa_core.settings import Settings


def test_a_home_is_absolute_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    for given, meant in (("state", tmp_path / "state"), ("~/state", "/home/somebody/state")):
        monkeypatch.setenv("MAPPA_HOME", given)
        assert Settings().checkpoints == Path(meant) / "checkpoints"
